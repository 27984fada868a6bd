"""One machine: embedded broker, SQLite, the process runtime allowed."""

from portal.settings import env
from portal.settings.base import *  # noqa: F403
from portal.settings.base import STARLING

DEBUG = env.flag("STARLING_DEBUG", default=False)
STARLING |= {"PROCESS_RUNTIME": env.flag("STARLING_PROCESS_RUNTIME", default=True)}
