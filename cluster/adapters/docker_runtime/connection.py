"""One engine's client, shared by all threads, and its troubles in our own words."""

import errno
import socket
from collections.abc import Callable
from contextlib import suppress
from threading import Lock
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import requests
import urllib3
from docker import APIClient
from docker.errors import APIError, DockerException, TLSParameterError
from docker.tls import TLSConfig

from cluster.errors import ClusterError, HostRefusedError, HostUnreachableError
from cluster.ports import HostEndpoint

_T = TypeVar("_T")

BROKEN: Final = (
    requests.exceptions.ConnectionError,
    requests.exceptions.Timeout,
    requests.exceptions.ChunkedEncodingError,
    urllib3.exceptions.HTTPError,
    TimeoutError,
    ConnectionError,
)
_POOL: Final = 64
#: A peer that vanished is noticed after 15 + 3 x 5 seconds, also while it has nothing to say.
_KEEPALIVE: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)
_SOCKET_CLOSED: Final = (
    "the portal's user may not open the Docker socket; add it to the group docker "
    "('usermod -aG docker USER') and start the portal again"
)
#: Words of an error, and what to tell the admin.
_REFUSALS: Final = (
    (("PermissionError", "Permission denied"), _SOCKET_CLOSED),
    (
        ("doesn't match", "certificate is not valid for"),
        "its certificate is for another name; make one whose subjectAltName has the address used",
    ),
    (
        ("certificate has expired",),
        "its certificate has expired; make a new one and restart Docker there",
    ),
    (
        ("CERTIFICATE_VERIFY_FAILED", "certificate verify failed"),
        "its certificate was not signed by the given CA; check the CA file",
    ),
    (
        ("certificate required", "bad certificate", "unknown ca"),
        "it wants a client certificate signed by its own CA; check the certificate and key files",
    ),
    (
        ("WRONG_VERSION_NUMBER", "wrong version number", "HTTP response to HTTPS"),
        "it does not speak TLS on this port; start dockerd there with --tlsverify",
    ),
    (
        ("no longer supported by this library", "too old"),
        "its Docker Engine is too old; install Docker Engine 19.03 or newer",
    ),
)


class Api(APIClient):  # type: ignore[misc]
    """The SDK's client, deaf to variables like REQUESTS_CA_BUNDLE and HTTPS_PROXY.

    They would replace the host's own CA, and send its traffic to somebody else.
    """

    trust_env = property(lambda _: False, lambda *_: None)


class Connection:
    """Asks one engine, each question within the endpoint's timeout."""

    def __init__(self, endpoint: HostEndpoint) -> None:
        self.endpoint = endpoint
        self._lock = Lock()
        self._client: Api | None = None

    def ask(self, question: Callable[[Api], _T]) -> _T:
        """Return the engine's answer.

        Raises:
            HostUnreachableError: If it did not answer in time.
            HostRefusedError: If it refuses us.
            APIError: If it answers with an error, for the caller to judge.
        """
        try:
            self._knock()
            return question(self._connected())
        except APIError:
            raise
        except (*BROKEN, DockerException, OSError) as error:
            self._forget()
            raise self._translated(error) from error

    def open_stream(self, path: str, parameters: dict[str, Any]) -> requests.Response:
        """Open a response without an end; its opening has a time limit, its reading none.

        Raises:
            HostUnreachableError: If it was not opened in time.
            HostRefusedError: If the engine refuses us.
            APIError: If it answers with an error, for the caller to judge.
        """

        def opened(api: Api) -> requests.Response:
            response: requests.Response = api.get(
                api._url(path),  # noqa: SLF001 - the SDK rounds "since" to whole seconds
                params=parameters,
                stream=True,
                timeout=self.endpoint.timeout_s,
            )
            try:
                api._raise_for_status(response)  # noqa: SLF001 - as above
            except APIError:
                response.close()
                raise
            return response

        response = self.ask(opened)
        waiting = socket_of(response)
        if waiting is not None:
            waiting.settimeout(None)
            if waiting.family != socket.AF_UNIX:
                for option in _KEEPALIVE:
                    with suppress(OSError):
                        waiting.setsockopt(*option)
        return response

    def _knock(self) -> None:
        """Find out at once, and in the system's own words, that nobody listens on a socket."""
        address = urlsplit(self.endpoint.url)
        if address.scheme == "unix":
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as trial:
                trial.settimeout(self.endpoint.timeout_s)
                trial.connect(address.path)

    def _connected(self) -> Api:
        with self._lock:
            if self._client is not None:
                return self._client
        # Made outside the lock: threads wait for the engine side by side, not in a row.
        made = Api(
            base_url=self.endpoint.url,
            version="auto",
            timeout=self.endpoint.timeout_s,
            tls=self._tls(),
            max_pool_size=_POOL,
        )
        with self._lock:
            if self._client is None:
                self._client = made
            return self._client

    def _tls(self) -> TLSConfig | bool:
        if urlsplit(self.endpoint.url).scheme != "tcp":
            return False
        end = self.endpoint
        if not (end.tls_ca and end.tls_cert and end.tls_key):
            raise HostRefusedError(
                end.name,
                detail="a tcp:// address needs a CA, a client certificate and a key: whoever may "
                "speak to a Docker engine without them is root on its host",
            )
        try:
            return TLSConfig(
                client_cert=(end.tls_cert, end.tls_key), ca_cert=end.tls_ca, verify=True
            )
        except TLSParameterError as error:
            raise HostRefusedError(
                end.name,
                detail="the CA, certificate or key file cannot be read; check their paths",
            ) from error

    def _forget(self) -> None:
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    def _translated(self, error: Exception) -> ClusterError:
        name, text = self.endpoint.name, str(error)
        if getattr(error, "errno", None) == errno.ENOENT:
            return HostUnreachableError(name, detail=f"there is no socket at {self.endpoint.url}")
        for words, remedy in _REFUSALS:
            if any(word in text for word in words):
                return HostRefusedError(name, detail=remedy)
        return HostUnreachableError(name, detail=brief(error))


def socket_of(response: requests.Response) -> socket.socket | None:
    """Return the socket that a streamed response is read from."""
    connection = getattr(response.raw, "_connection", None)
    return getattr(connection, "sock", None)


def brief(error: Exception) -> str:
    """Return what the engine says, or the error says, in a bearable length."""
    text = str(getattr(error, "explanation", None) or error)
    return text if len(text) <= 300 else text[:300] + "…"
