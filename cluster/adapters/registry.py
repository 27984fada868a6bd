"""Which adapter serves which endpoint; one object per endpoint, shared by all threads."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from urllib.parse import urlsplit

from cluster.adapters.docker_runtime import DockerRuntime
from cluster.adapters.probe_follower import DockerProbe, LocalProbe
from cluster.adapters.process_runtime import ProcessRuntime
from cluster.errors import HostRefusedError
from cluster.ports import ContainerRuntime, HostEndpoint, HostProbe


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryConfig:
    """What adapters need to know of this installation.

    Attributes:
        instance: Marks the containers of this portal.
        process_allowed: Whether the process runtime may be used.
        probe_image: Image with Python in which the probe runs on container hosts.
        simulated_gpus: A machine known to :mod:`cluster.probe.simulated`, whose GPUs the process
            runtime's host is said to have; empty for the real ones.
    """

    state_dir: Path
    instance: str
    process_allowed: bool
    probe_image: str
    simulated_gpus: str = ""


_lock = Lock()
_config: RegistryConfig | None = None
_runtimes: dict[HostEndpoint, ContainerRuntime] = {}
_override: Callable[[HostEndpoint], ContainerRuntime] | None = None


def configure(config: RegistryConfig) -> None:
    """Take the installation's facts; what was made before is forgotten."""
    global _config  # noqa: PLW0603 - set once, when the app is ready
    with _lock:
        _config = config
        _runtimes.clear()


def override(make: Callable[[HostEndpoint], ContainerRuntime] | None) -> None:
    """Let a test serve every endpoint with a runtime of its own; ``None`` ends that."""
    global _override  # noqa: PLW0603 - tests only, set and reset by a fixture
    _override = make


def runtime_for(endpoint: HostEndpoint) -> ContainerRuntime:
    """Return the runtime of an endpoint.

    Raises:
        HostRefusedError: If no adapter serves such an endpoint.
    """
    if _override is not None:
        return _override(endpoint)
    with _lock:
        if endpoint not in _runtimes:
            _runtimes[endpoint] = _make(endpoint)
        return _runtimes[endpoint]


def probe_for(endpoint: HostEndpoint) -> HostProbe:
    """Return a probe of an endpoint; each call makes a new one.

    Raises:
        HostRefusedError: If no adapter serves such an endpoint.
    """
    config = _configured()
    if urlsplit(endpoint.url).scheme == "process":
        return LocalProbe(endpoint, state_dir=config.state_dir, simulate=config.simulated_gpus)
    runtime = runtime_for(endpoint)
    if not isinstance(runtime, DockerRuntime):
        raise HostRefusedError(endpoint.name, detail=f"no probe serves {endpoint.url!r}")
    return DockerProbe(runtime, image=config.probe_image, instance=config.instance)


def _configured() -> RegistryConfig:
    if _config is None:
        raise RuntimeError("cluster.adapters.registry is not configured")
    return _config


def _make(endpoint: HostEndpoint) -> ContainerRuntime:
    config = _configured()
    match urlsplit(endpoint.url).scheme:
        case "process":
            return ProcessRuntime(
                endpoint, state_dir=config.state_dir, allowed=config.process_allowed
            )
        case "unix" | "tcp":
            return DockerRuntime(endpoint, instance=config.instance)
        case "ssh":
            raise HostRefusedError(
                endpoint.name,
                detail="ssh:// addresses are not served yet; use tcp:// with TLS, or forward the "
                "socket ('ssh -N -L /run/far.sock:/var/run/docker.sock HOST') and use "
                "unix:///run/far.sock",
            )
        case scheme:
            raise HostRefusedError(endpoint.name, detail=f"no adapter serves {scheme!r} endpoints")
