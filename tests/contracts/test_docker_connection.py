"""How an engine is reached: mutual TLS, and what the admin is told when it fails."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from cluster.adapters.docker_runtime import DockerRuntime
from cluster.adapters.registry import runtime_for
from cluster.errors import HostRefusedError, HostUnreachableError
from cluster.ports import HostEndpoint
from tests.conftest import require
from tests.contracts.conftest import Bench
from tests.fakes.engines import docker_address, tls_front


@dataclass
class Keys:
    """A CA, and what it signed."""

    folder: Path

    def make_ca(self) -> None:
        self.folder.mkdir()
        self._openssl(
            "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
            "-nodes", "-keyout", "ca-key.pem", "-out", "ca.pem", "-subj", "/CN=test CA",
            "-days", "2", "-addext", "keyUsage=critical,keyCertSign,cRLSign",
        )  # fmt: skip

    def make(self, name: str, *, address: str = "IP:127.0.0.1") -> None:
        self._openssl(
            "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
            "-keyout", f"{name}-key.pem", "-out", f"{name}.csr", "-subj", f"/CN={name}",
        )  # fmt: skip
        (self.folder / f"{name}.ext").write_text(f"subjectAltName={address}\n")
        self._openssl(
            "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca-key.pem",
            "-CAcreateserial", "-out", f"{name}.pem", "-days", "2", "-extfile", f"{name}.ext",
        )  # fmt: skip

    def path(self, name: str) -> str:
        return str(self.folder / f"{name}.pem")

    def _openssl(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=self.folder, check=True, capture_output=True)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    require(shutil.which("openssl"), "openssl")
    made = Keys(tmp_path_factory.mktemp("keys") / "own")
    made.make_ca()
    for name in ("server", "client"):
        made.make(name)
    made.make("elsewhere", address="DNS:elsewhere.example")
    return made


@pytest.fixture(scope="module")
def strangers(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    require(shutil.which("openssl"), "openssl")
    made = Keys(tmp_path_factory.mktemp("keys") / "strange")
    made.make_ca()
    made.make("client")
    return made


def front(keys: Keys, name: str) -> Iterator[HostEndpoint]:
    address = docker_address()
    require(address.startswith("unix://"), "a Docker engine's socket")
    server = {"certificate": Path(keys.path(name)), "key": Path(keys.path(f"{name}-key"))}
    with tls_front(address, ca=Path(keys.path("ca")), **server) as port:
        yield HostEndpoint(
            name="far",
            url=f"tcp://127.0.0.1:{port}",
            tls_ca=keys.path("ca"),
            tls_cert=keys.path("client"),
            tls_key=keys.path("client-key"),
        )


@pytest.fixture
def endpoint(keys: Keys) -> Iterator[HostEndpoint]:
    yield from front(keys, "server")


@pytest.fixture
def misnamed(keys: Keys) -> Iterator[HostEndpoint]:
    yield from front(keys, "elsewhere")


def refusal(endpoint: HostEndpoint) -> str:
    with pytest.raises(HostRefusedError) as caught:
        DockerRuntime(endpoint, instance="contract").describe()
    return caught.value.detail


@pytest.mark.docker
def test_jobs_run_and_are_followed_over_mutual_tls(endpoint: HostEndpoint, tmp_path: Path) -> None:
    runtime = DockerRuntime(endpoint, instance="contract")
    bench = Bench(kind="docker", runtime=runtime, folder=tmp_path)
    spec = bench.spec("for number in range(1000): print(number)")

    assert runtime.describe().kind == "docker"
    runtime.start(spec)
    status, lines = bench.ended(spec.name)
    runtime.remove(spec.name)

    assert status.exit_code == 0
    assert [line.text for line in lines] == [str(number) for number in range(1000)]


@pytest.mark.docker
def test_an_engine_of_another_ca_is_refused(endpoint: HostEndpoint, strangers: Keys) -> None:
    assert "not signed by the given CA" in refusal(replace(endpoint, tls_ca=strangers.path("ca")))


@pytest.mark.docker
def test_an_engine_that_does_not_know_us_says_so(endpoint: HostEndpoint, strangers: Keys) -> None:
    cert, key = strangers.path("client"), strangers.path("client-key")

    assert "client certificate" in refusal(replace(endpoint, tls_cert=cert, tls_key=key))


@pytest.mark.docker
def test_a_certificate_for_another_name_is_refused(misnamed: HostEndpoint) -> None:
    assert "for another name" in refusal(misnamed)


def test_an_engine_without_tls_is_refused(keys: Keys) -> None:
    assert "needs a CA" in refusal(HostEndpoint(name="far", url="tcp://127.0.0.1:1"))


def test_missing_files_are_told(tmp_path: Path) -> None:
    nowhere = str(tmp_path / "nowhere.pem")
    endpoint = HostEndpoint(
        name="far", url="tcp://127.0.0.1:1", tls_ca=nowhere, tls_cert=nowhere, tls_key=nowhere
    )

    assert "cannot be read" in refusal(endpoint)


def test_a_port_nobody_listens_on_is_unreachable(keys: Keys) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    endpoint = HostEndpoint(
        name="far",
        url=f"tcp://127.0.0.1:{port}",
        tls_ca=keys.path("ca"),
        tls_cert=keys.path("client"),
        tls_key=keys.path("client-key"),
    )

    with pytest.raises(HostUnreachableError):
        DockerRuntime(endpoint, instance="contract").describe()


def test_a_socket_of_others_is_refused_with_the_remedy(tmp_path: Path) -> None:
    """Asked by a user who may not open the socket."""
    if os.geteuid() != 0:
        pytest.skip("only root can become somebody else")
    path = tmp_path / "docker.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(str(path))
        server.listen()
        path.chmod(0o600)
        for folder in [tmp_path, *list(tmp_path.parents)[:-1]]:
            if folder.stat().st_uid == 0 and folder.name.startswith(("pytest", tmp_path.name)):
                folder.chmod(0o755)
        os.seteuid(65534)
        try:
            detail = refusal(HostEndpoint(name="near", url=f"unix://{path}"))
        finally:
            os.seteuid(0)

    assert "usermod -aG docker" in detail


@pytest.mark.parametrize(
    ("url", "words"), [("ssh://user@far", "not served yet"), ("http://far", "no adapter")]
)
def test_other_addresses_are_refused(tmp_path: Path, url: str, words: str) -> None:
    with pytest.raises(HostRefusedError, match=words):
        runtime_for(HostEndpoint(name="far", url=url))


def test_one_endpoint_has_one_runtime() -> None:
    endpoint = HostEndpoint(name="a", url="unix:///nowhere.sock")

    assert runtime_for(endpoint) is runtime_for(replace(endpoint))
    assert runtime_for(endpoint) is not runtime_for(replace(endpoint, timeout_s=1))
