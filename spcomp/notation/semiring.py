"""Beside the route: what ``+`` and ``*`` mean in a program of index notation."""

from __future__ import annotations

import math
from dataclasses import dataclass

from spcomp.errors import ArgumentError

ADDS = ("+", "*", "min", "max", "or", "and")
MULS = (*ADDS, "-", "/", "first", "second", "pair")


@dataclass(frozen=True, slots=True)
class Semiring:
    """The meaning of ``+``, ``*``, and of the reductions that a statement implies.

    Args:
        add: What ``+`` and implied reductions do: ``+``, ``*``, ``min``, ``max``, ``or``, ``and``.
        mul: What ``*`` does: one of these, ``-``, ``/``, or ``first``, ``second`` (one of both
            operands) and ``pair`` (1).
        zero: The neutral element of *add*: the value of a dense result where nothing is added.
        one: The neutral element of *mul*, for readers; programs do not need it.

    Raises:
        ArgumentError: for another operator, or a *zero* that is not neutral.
    """

    add: str = "+"
    mul: str = "*"
    zero: int | float | bool | None = None
    one: int | float | bool | None = None

    def __post_init__(self) -> None:
        for name, op, operators in (("add", self.add, ADDS), ("mul", self.mul, MULS)):
            if op not in operators:
                hint = f"it is one of {', '.join(operators)}"
                raise ArgumentError(f"argument {name}: got {op!r}", hint=hint)
        neutral = _NEUTRAL[self.add]
        if self.zero is None:
            object.__setattr__(self, "zero", neutral)
        elif self.zero != neutral:
            raise ArgumentError(
                f"argument zero: got {self.zero}, but {neutral} is neutral for {self.add}"
            )

    @property
    def is_ordinary(self) -> bool:
        """Whether ``+`` and ``*`` have their ordinary meaning."""
        return (self.add, self.mul) == ("+", "*")


_NEUTRAL: dict[str, int | float | bool] = {
    "+": 0,
    "*": 1,
    "min": math.inf,
    "max": -math.inf,
    "or": False,
    "and": True,
}
ORDINARY = plus_times = Semiring()
min_plus = Semiring("min", "+", math.inf, 0)
max_plus = Semiring("max", "+", -math.inf, 0)
max_times = Semiring("max", "*", -math.inf, 1)
min_times = Semiring("min", "*", math.inf, 1)
min_max = Semiring("min", "max", math.inf, -math.inf)
max_min = Semiring("max", "min", -math.inf, math.inf)
or_and = Semiring("or", "and", False, True)
plus_pair = Semiring("+", "pair", 0, 1)
min_first = Semiring("min", "first", math.inf)
min_second = Semiring("min", "second", math.inf)
BUILT_IN = {
    "max_min": max_min,
    "max_plus": max_plus,
    "max_times": max_times,
    "min_first": min_first,
    "min_max": min_max,
    "min_plus": min_plus,
    "min_second": min_second,
    "min_times": min_times,
    "or_and": or_and,
    "plus_pair": plus_pair,
    "plus_times": plus_times,
}


def as_semiring(semiring: Semiring | str) -> Semiring:
    """Return *semiring*, or the built-in one of that name; raises ArgumentError for another."""
    value = BUILT_IN.get(semiring) if isinstance(semiring, str) else semiring
    if not isinstance(value, Semiring):
        names = ", ".join(BUILT_IN)
        raise ArgumentError(f"argument semiring: got {semiring!r}", hint=f"built in are {names}")
    return value
