"""Errors of logs and samples."""


class MonitoringError(Exception):
    """Something about what was measured or printed."""

    code = "monitoring_error"


class StaleCursorError(MonitoringError):
    """Another follower has stored lines of this output meanwhile; follow on from its cursor."""

    code = "stale_cursor"

    def __init__(self, replica: object) -> None:
        super().__init__(f"the output of {replica} is stored further than this follower thinks")
