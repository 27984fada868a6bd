"""Errors of the pure core."""


class CoreError(Exception):
    """Something a pure function was given cannot be worked with."""


class BadProblemError(CoreError):
    """A snapshot or request contradicts itself, for instance a negative size."""
