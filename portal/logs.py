"""How log records are printed: the message is constant, the facts follow it."""

import logging
from typing import Final

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "data"}


class FactsFormatter(logging.Formatter):
    """Prints ``time level logger message key=value …`` with the record's ``extra`` as facts."""

    def __init__(self) -> None:
        super().__init__("{asctime} {levelname:<7} {name} {message}", style="{")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the base's name
        """Return the line with the facts of ``extra`` after the message."""
        facts = " ".join(
            f"{key}={value!s}" for key, value in vars(record).items() if key not in _STANDARD
        )
        line = super().formatMessage(record)
        return f"{line} {facts}" if facts else line
