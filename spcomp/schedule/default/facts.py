"""Beside position space: what the default schedule may know of a call's data."""

from __future__ import annotations

from dataclasses import dataclass

MOST_ROW = 128  # the longest rows that are told apart


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts about the data of a call.

    *hubs*: some row is so long that threads should share it. *skewed*: parts with equally many
    rows hold very different numbers of elements. *runs*: some coordinate of a sorted axis occurs
    so often that threads should share it. *row*: how many elements a row has on average, rounded
    up to a power of two up to MOST_ROW; 0 if nobody asked. *few*: all rows run at once, even with
    as many threads each as can share one. *piece*: elements of a very long row that are worth a
    group of threads; 0 if nobody asked. *full*: the lists of rows that a tensor
    consists of name a good part of all rows, each.
    """

    hubs: bool = False
    skewed: bool = False
    runs: bool = False
    row: int = 0
    few: bool = False
    piece: int = 0
    full: bool = False

    def __str__(self) -> str:
        """What is known, in words; empty if nothing is."""
        mean = f"rows of up to {self.row} elements on average" if 0 < self.row < MOST_ROW else ""
        known = {
            mean or "rows of many elements": self.row,
            "a row so long that threads share it": self.hubs,
            "rows of very different lengths": self.skewed,
            "few rows": self.few,
            "a coordinate so frequent that threads share it": self.runs,
            "lists that name a good part of all rows": self.full,
        }
        return ", ".join(words for words, holds in known.items() if holds)


UNKNOWN = Facts()  # nothing is known
