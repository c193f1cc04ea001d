"""Beside position space: what the default schedule may know of a call's data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts about the data of a call.

    *hubs*: some row is so long that threads should share it. *skewed*: parts with equally many
    rows hold very different numbers of elements. *runs*: some coordinate of a sorted axis occurs
    so often that threads should share it. *row*: how many elements a row has on average, rounded
    up to a power of two up to 32; 0 if nobody asked.
    """

    hubs: bool = False
    skewed: bool = False
    runs: bool = False
    row: int = 0


UNKNOWN = Facts()  # nothing is known
