"""The environment, read once; the only user of ``os.environ`` in the settings."""

import hashlib
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from django.core.exceptions import ImproperlyConfigured

BASE_DIR = Path(__file__).resolve().parent.parent.parent
_TRUE, _FALSE = {"1", "true", "yes", "on"}, {"0", "false", "no", "off", ""}
# A unix socket's address holds 107 bytes; one more and bind fails.
_SOCKET_PATH_BYTES = 100


def text(name: str, default: str = "") -> str:
    """Return the variable, or ``default`` where it is not set or empty."""
    return os.environ.get(name, "").strip() or default


def flag(name: str, *, default: bool) -> bool:
    """Return the variable as a truth value.

    Raises:
        ImproperlyConfigured: If it is neither yes nor no.
    """
    raw = os.environ.get(name)
    if raw is None:
        return default
    word = raw.strip().lower()
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise ImproperlyConfigured(f"{name} must be yes or no, not {raw!r}")


def integer(name: str, default: int, *, minimum: int = 0) -> int:
    """Return the variable as a whole number of at least ``minimum``.

    Raises:
        ImproperlyConfigured: If it is not such a number.
    """
    raw = text(name)
    if not raw:
        return default
    try:
        value = int(raw)
    except ValueError as error:
        raise ImproperlyConfigured(f"{name} must be a whole number, not {raw!r}") from error
    if value < minimum:
        raise ImproperlyConfigured(f"{name} must be at least {minimum}, not {value}")
    return value


def choice(name: str, among: Sequence[str]) -> str:
    """Return the variable, one of ``among``; the first where it is not set.

    Raises:
        ImproperlyConfigured: If it is none of them.
    """
    value = text(name, among[0])
    if value not in among:
        raise ImproperlyConfigured(f"{name} must be one of {', '.join(among)}, not {value!r}")
    return value


def words(name: str, default: str = "") -> list[str]:
    """Return the variable as a list, split at commas."""
    return [word.strip() for word in text(name, default).split(",") if word.strip()]


def state_dir() -> Path:
    """Return the one folder in which all state of this installation lives."""
    return Path(text("STARLING_STATE", str(BASE_DIR / "var"))).expanduser().resolve()


def socket_path(state: Path) -> Path:
    """Return where the embedded broker listens; short enough for a socket's address."""
    preferred = state / "run" / "valkey.sock"
    if len(os.fsencode(preferred)) <= _SOCKET_PATH_BYTES:
        return preferred
    digest = hashlib.sha256(os.fsencode(state)).hexdigest()[:12]
    return Path(f"/tmp/starling-{os.getuid()}-{digest}/valkey.sock")  # noqa: S108 - made 0700 by its user


def database(url: str, state: Path) -> dict[str, Any]:
    """Return Django's database entry for ``url``; SQLite in ``state`` where it is empty.

    Raises:
        ImproperlyConfigured: If the scheme is not sqlite or postgresql.
    """
    parts = urlsplit(url or f"sqlite:///{state / 'db.sqlite3'}")
    if parts.scheme == "sqlite":
        return {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": unquote(parts.path[1:] if parts.path.startswith("//") else parts.path),
            # Readers never block the writer (WAL) and a transaction takes the write lock when it
            # begins (IMMEDIATE), so it waits its turn instead of failing half way.
            "OPTIONS": {
                "timeout": 20,
                "transaction_mode": "IMMEDIATE",
                "init_command": (
                    "PRAGMA journal_mode=WAL;PRAGMA synchronous=NORMAL;"
                    "PRAGMA busy_timeout=20000;PRAGMA foreign_keys=ON;"
                ),
            },
        }
    if parts.scheme in {"postgres", "postgresql"}:
        return {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": unquote(parts.path.lstrip("/")),
            "USER": unquote(parts.username or ""),
            "PASSWORD": unquote(parts.password or ""),
            "HOST": unquote(parts.hostname or "") or dict(parse_qsl(parts.query)).get("host", ""),
            "PORT": str(parts.port or ""),
            "CONN_HEALTH_CHECKS": True,
            "CONN_MAX_AGE": 60,
        }
    raise ImproperlyConfigured(
        f"DATABASE_URL must begin with sqlite:/// or postgresql://, not {parts.scheme!r}"
    )


def instance_name(key: str) -> str:
    """Return a name that no other installation has; what it starts on a host carries it."""
    return hashlib.sha256(b"instance:" + key.encode()).hexdigest()[:12]


def secret_key(state: Path) -> str:
    """Return the signing key: the variable's, or one made once and kept in ``state``."""
    given = text("STARLING_SECRET_KEY")
    if given:
        return given
    path = state / "secret-key"
    if not path.exists():
        from django.core.management.utils import get_random_secret_key

        state.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".secret-key-{os.getpid()}")
        draft.touch(mode=0o600)
        draft.write_text(get_random_secret_key())
        # link() fails where another process was first: then its key is the key.
        with suppress(FileExistsError):
            os.link(draft, path)
        draft.unlink()
    return path.read_text().strip()
