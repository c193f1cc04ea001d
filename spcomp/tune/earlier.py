"""Under the tuner: what earlier searches kept, which a later one times first and may replace."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from spcomp.tune.choice import Choice
from spcomp.tune.measure import LEAST, Interval
from spcomp.tune.problem import versions
from spcomp.tune.store import KINDS, Record, Store

if TYPE_CHECKING:
    from spcomp.tune.space import Candidate, Space
    from spcomp.tune.trial import Status
    from spcomp.tune.winners import Asked


def earlier_winners(store: Store, asked: Asked, space: Space) -> dict[Candidate, Record]:
    """Return the winners that *store* has for the call *asked*, or one near it, as candidates."""
    found: dict[Candidate, Record] = {}
    for kind in KINDS[1:]:
        stored = store.winner(asked.problem, asked.machine, versions(), kind)
        if stored is None or (choice := Choice.from_json(stored[0].choice)) == Choice():
            continue
        candidate = space.candidate(choice, json.loads(stored[0].features))
        found.setdefault(candidate, stored[0])
    return found


def is_beaten(
    stored: Record, status: Status | None, latest: Interval | None, found: Interval
) -> bool:
    """Whether a search that *found* another winner has a reason to replace the *stored* one.

    That is what became of the stored one in this search: its *status*, None if it was not tried,
    and the *latest* interval, if it was timed. Few rounds are no reason unless each was lost, nor
    is an interval that is merely wide.
    """
    if found.low > stored.speedup:
        return True
    if status is None:
        return False
    if latest is None:  # it cannot be compiled, is wrong, the same as another one, or far slower
        return True
    lost = latest.rounds >= LEAST or latest.high < 1.0
    return lost and latest.value <= found.value
