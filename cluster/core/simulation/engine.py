"""The event heap and the simulated clock."""

import heapq
from itertools import count
from typing import Generic, TypeVar

Event = TypeVar("Event")


class Engine(Generic[Event]):
    """A clock that jumps from event to event; events of one moment come in the order they came in.

    It owns no loop: whoever runs a simulation pops events and schedules what follows from them.
    """

    def __init__(self) -> None:
        self.now_s = 0.0
        self._heap: list[tuple[float, int, Event]] = []
        self._serial = count()

    def __len__(self) -> int:
        return len(self._heap)

    def schedule(self, at_s: float, event: Event) -> None:
        """Let ``event`` happen at ``at_s``.

        Raises:
            ValueError: If that moment has passed or is no number.
        """
        if not at_s >= self.now_s:
            raise ValueError(f"cannot schedule an event for {at_s} s at {self.now_s} s")
        heapq.heappush(self._heap, (at_s, next(self._serial), event))

    def pop(self) -> Event:
        """Move the clock to the next event and return it.

        Raises:
            IndexError: If nothing is left to happen.
        """
        self.now_s, _, event = heapq.heappop(self._heap)
        return event

    def next_s(self) -> float | None:
        """Return when the next event happens, ``None`` if none does."""
        return self._heap[0][0] if self._heap else None
