"""In position space: the sampling steps, which record a random choice; the program stays."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import isfinite, prod
from typing import ClassVar

from spcomp.ir.arith.simplify import simplify
from spcomp.ir.expr import Const, binary
from spcomp.ir.func import Func
from spcomp.ir.stmt import For
from spcomp.schedule.nests.nests import find_loop
from spcomp.schedule.steps.base import Step
from spcomp.schedule.steps.loops.annotate import Value


@dataclass(frozen=True, slots=True)
class SamplePerfectTile(Step):
    """``for k in n: s  ->  for k in n: s``; records *n* factors of the trip count.

    *decision*: the factors, outermost first, the last at most *max_innermost_factor*; what split
    takes. Legal for a loop of constant trip count. Source: TVM's sample_perfect_tile.
    """

    name: ClassVar[str] = "sample_perfect_tile"
    loop: str
    n: int
    max_innermost_factor: int
    decision: tuple[int, ...]

    @property
    def value(self) -> tuple[int, ...]:
        """The factors."""
        return self.decision

    def plan(self, func: Func) -> Func:
        """Return *func*, after checking that the decision is a tile of the loop."""
        loop = find_loop(func, self.loop, self)
        extent, factors = extent_of(loop), self.decision
        if extent is None:
            raise self.error("the trip count is not a constant", loop)
        fits = len(factors) == self.n and all(isinstance(f, int) and f > 0 for f in factors)
        if not fits or prod(factors) != extent or factors[-1] > self.max_innermost_factor:
            raise self.error(f"{factors} is no tile of {extent} in {self.n} parts", loop)
        return func


@dataclass(frozen=True, slots=True)
class SampleCategorical(Step):
    """``s  ->  s``; records one of *candidates*; *decision* is its index.

    Source: TVM's sample_categorical.
    """

    name: ClassVar[str] = "sample_categorical"
    candidates: tuple[Value, ...]
    probs: tuple[float, ...]
    decision: int

    @property
    def value(self) -> Value:
        """The chosen candidate."""
        return self.candidates[self.decision]

    def fits(self, func: Func) -> bool:
        """Whether *func* is a program; a choice does not depend on its level."""
        return isinstance(func, Func)

    def plan(self, func: Func) -> Func:
        """Return *func*, after checking that the decision is the index of a candidate."""
        if len(self.probs) != len(self.candidates) or not are_weights(self.probs):
            raise self.error("each candidate has a probability, and one is not 0", func)
        if not isinstance(self.decision, int) or not 0 <= self.decision < len(self.candidates):
            raise self.error("the decision is no index of the candidates", func)
        return func


Sample = SamplePerfectTile | SampleCategorical


def are_weights(probs: Sequence[float]) -> bool:
    """Whether *probs* are numbers of at least 0, not all of them 0."""
    if not isinstance(probs, (tuple, list)):
        return False
    numbers = all(isinstance(p, (int, float)) and isfinite(p) and p >= 0 for p in probs)
    return numbers and sum(probs) > 0


def extent_of(loop: For) -> int | None:
    """Return the trip count of *loop* if it is a constant of at least 1."""
    count = simplify(binary("-", loop.end, loop.begin))
    return int(count.value) if isinstance(count, Const) and count.value >= 1 else None


def draw_tile(extent: int, n: int, most: int, rng: random.Random) -> tuple[int, ...]:
    """Return *n* random factors of *extent*, the last at most *most* (at least 1).

    The last is drawn from the divisors that are allowed; then each prime factor that remains goes
    to one of the others. With n = 1 there is no choice.
    """
    if n == 1:
        return (extent,)
    last = rng.choice([d for d in divisors(extent) if d <= most])
    factors = [1] * (n - 1)
    for prime in primes(extent // last):
        factors[rng.randrange(n - 1)] *= prime
    return (*factors, last)


def divisors(number: int) -> list[int]:
    """Return the divisors of *number*, ascending: all products of its prime factors."""
    products = {1}
    for prime in primes(number):
        products |= {prime * other for other in products}
    return sorted(products)


def primes(number: int) -> list[int]:
    """Return the prime factors of *number*, ascending; a product of factors over 2**16 as one."""
    factors: list[int] = []
    factor = 2
    while factor * factor <= number and factor < 1 << 16:
        while number % factor == 0:
            factors.append(factor)
            number //= factor
        factor += 1 if factor == 2 else 2
    return factors if number == 1 else [*factors, number]


def draw_index(probs: Sequence[float], rng: random.Random) -> int:
    """Return a random index; *probs* are the probabilities, up to a common factor."""
    total = list(accumulate(probs))
    at = rng.random() * total[-1]
    return next(k for k, bound in enumerate(total) if at < bound)
