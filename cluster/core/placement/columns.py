"""The best of all packings seen, put together: a restricted master program over filled hosts.

Every host that a search filled well is a column: a kind of host and how many replicas of each
class it holds. The program chooses columns so that everything is covered on the fewest hosts
(Gilmore and Gomory 1961, with the swarm's packings in the place of a pricing problem). What its
solution takes whole is fixed; the rest is decoded around it.
"""

import numpy as np
from numpy.typing import NDArray

from cluster.core.placement import kernels
from cluster.core.placement.kernels import Solution
from cluster.core.placement.packing import Ints
from cluster.core.placement.search import Search

Floats = NDArray[np.float64]


class Columns:
    """Filled hosts of many packings of one search, each once.

    Args:
        search: Whose packings they are.
        most: Columns that are kept; the newest win.
    """

    def __init__(self, search: Search, most: int = 6000) -> None:
        self._search, self._most = search, most
        self._rows = np.empty((0, 1 + len(search.counts)), np.int16)

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, solution: Solution) -> None:
        """Add the filled hosts of a packing; hosts that were in use before are no columns."""
        base = self._search.base
        filled = np.flatnonzero((solution.slots > 0) & (base.used == 0))
        rows = np.zeros((len(filled), self._rows.shape[1]), np.int16)
        rows[:, 0] = base.kind[filled]
        kernels.count_slots(filled, solution.slots, solution.slot_class, solution.slot_count, rows)
        self._rows = np.unique(np.vstack([rows, self._rows]), axis=0)[: self._most]

    def combine(self, position: Floats, into: Solution, seconds: float) -> bool:
        """Write the packing that the program makes of the columns; return whether it did.

        Args:
            position: The particle that decodes what the program does not take whole.
            into: Overwritten.
            seconds: Time for the program.
        """
        taken = self._solve(seconds)
        if taken is None:
            return False
        search = self._search
        whole = np.floor(taken + 1e-6).astype(np.int64)
        order = np.argsort(-taken, kind="stable")
        order = order[whole[order] > 0]
        kernels.reset(search.base, search.counts, into)
        kernels.fill_columns(
            self._rows[order, 0].astype(np.int64),
            self._rows[order, 1:].astype(np.int64),
            whole[order],
            search.kind_hosts,
            search.kind_start,
            search.base,
            search.classes,
            into,
        )
        search.decode_rest(position, into)
        return True

    def _solve(self, seconds: float) -> Floats | None:
        from scipy import optimize, sparse

        kinds, count = self._rows[:, 0].astype(np.int64), len(self._rows)
        sizes = np.diff(self._search.kind_start)
        covers = sparse.csr_matrix(self._rows[:, 1:].T.astype(np.float64))
        opens = sparse.csr_matrix(
            (np.ones(count), (kinds, np.arange(count))), shape=(len(sizes), count)
        )
        if seconds <= 0 or not count:
            return None
        result = optimize.linprog(
            np.ones(count),
            A_ub=sparse.vstack([-covers, opens], format="csr"),
            b_ub=np.concatenate([-self._coverable(), sizes]),
            method="highs",
            options={"time_limit": seconds},
        )
        return np.asarray(result.x) if result.status == 0 else None

    def _coverable(self) -> Ints:
        """Return how many of each class the columns must cover: none where no column has any."""
        held = (self._rows[:, 1:] > 0).any(axis=0)
        return np.where(held, self._search.counts, 0)
