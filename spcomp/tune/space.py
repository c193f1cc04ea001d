"""Under the tuner: its search space, formats and traces, made of the program and its matrices.

A candidate is what it changes of the default: formats, and decisions of the default schedule. Its
trace is what the default schedule gives with these decisions, so that it is always a legal one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any, TypeAlias

from spcomp.compiler.backends import backend_of
from spcomp.compiler.pipeline import as_module
from spcomp.errors import LoweringError, SpcompError, without_warnings
from spcomp.formats.rules import ComposableFormat
from spcomp.formats.sliced import Slices
from spcomp.ir.analysis.names import distinct
from spcomp.ir.axis import SparseBuffer, domain_axes
from spcomp.ir.coordinate import SpIter
from spcomp.ir.func import Func
from spcomp.ir.program import CoordFunc, PosFunc
from spcomp.ir.visitor import walk
from spcomp.kernels.decomposed.kernel import with_parts
from spcomp.passes.pipelines import legal, to_position
from spcomp.schedule.default.facts import UNKNOWN, Facts
from spcomp.schedule.step import Trace
from spcomp.tune.choice import Choice
from spcomp.tune.layouts import format_of, formats_for
from spcomp.tune.templates import DEFAULT, TEMPLATES

if TYPE_CHECKING:
    from random import Random

    from spcomp.compiler.options import Options
    from spcomp.tune.statistics import MatrixStatistics
    from spcomp.tune.templates import Decisions, Value
    from spcomp.tune.winners import Asked

Formats: TypeAlias = tuple[tuple[str, str], ...]
Decided: TypeAlias = tuple[tuple[str, "Value"], ...]

_WORDS: Mapping[Value, int] = {"equal": 0, "balanced": 1, "hubs": 2, "sparse": 1}  # as numbers


@dataclass(frozen=True, slots=True)
class Candidate:
    """Formats by buffer, and the decisions that differ from the default schedule's, by name.

    *own*: what a user's space yielded, in place of decisions.
    """

    formats: Formats = ()
    decisions: Decided = ()
    own: Choice | None = None

    def with_decision(self, name: str, value: Value) -> Candidate:
        """Return the candidate with another decision."""
        others = {k: v for k, v in self.decisions if k != name}
        chosen = others if value == DEFAULT else {**others, name: value}
        return replace(self, decisions=tuple(sorted(chosen.items())))

    @property
    def numbers(self) -> dict[str, float]:
        """The decisions as a cost model takes them; those of the default schedule are left out."""
        return {f"decides_{name}": float(_WORDS.get(v, v)) for name, v in self.decisions}

    def __str__(self) -> str:
        if self.own is not None:
            return str(self.own)
        formats = [f"{name} in {text}" for name, text in self.formats]
        decisions = [f"{name}={value}" for name, value in self.decisions]
        return "; ".join(filter(None, (", ".join(formats), ", ".join(decisions)))) or DEFAULT


class Space:
    """The candidates of *func* for matrices with these *statistics*, by buffer.

    *extents*: the sizes that are compiled in; *facts*: those of the default version of the call;
    *values*: of decisions, in place of the template's. *refused* says why a format of the library
    is not in the space.
    """

    def __init__(
        self,
        func: Func,
        options: Options,
        extents: Mapping[str, int],
        facts: Facts,
        statistics: Mapping[str, MatrixStatistics],
        threads: int,
        values: Mapping[str, tuple[Value, ...]] | None = None,
    ) -> None:
        self.func, self.options, self.facts = func, options, facts
        self.template = TEMPLATES[options.target.kind]
        self.values = self.template.values if values is None else values
        self.extents, self.threads = dict(extents), threads
        self.refused: dict[str, str] = {}
        self._bases: dict[Formats, _Base] = {}
        self._dimensions: dict[Formats, dict[str, tuple[Value, ...]]] = {}
        self.formats: tuple[Formats, ...] = ((), *self._formats(statistics))

    @classmethod
    def of(cls, asked: Asked, values: Mapping[str, tuple[Value, ...]] | None = None) -> Space:
        """Return the candidates for the call *asked*, with as many threads as it now uses."""
        options, matrices = asked.kernel.options, dict(asked.problem.matrices)
        facts = asked.version.options.facts or UNKNOWN
        extents, threads = dict(asked.problem.extents), TEMPLATES[options.target.kind].threads()
        threads = min(threads, options.threads or threads)
        return cls(asked.func, options, extents, facts, matrices, threads, values)

    def _formats(self, statistics: Mapping[str, MatrixStatistics]) -> Iterator[Formats]:
        """Yield the formats of the library in which one of the matrices may be stored."""
        buffers = {b.name: b for b in self.func.buffers if isinstance(b, SparseBuffer)}
        for name, matrix in statistics.items():
            for text in formats_for(matrix) if name in buffers else ():
                layout = format_of(text)
                if isinstance(layout, Slices) and self._has_vectors(buffers[name]):
                    continue  # what is done for an element runs in vectors already
                try:
                    self._bases[(name, text),] = self._base({name: layout})
                except SpcompError as error:
                    self.refused[f"{name} in {text}"] = error.message
                else:
                    yield ((name, text),)

    def _has_vectors(self, matrix: SparseBuffer) -> bool:
        """Whether the program runs over further axes for each element of *matrix*."""
        iterations = (node for node in walk(self.func.body) if isinstance(node, SpIter))
        axes = ({a for domain in it.domains for a in domain_axes(domain)} for it in iterations)
        return any(over > {*matrix.axes} for over in axes)

    def seeds(self) -> Iterator[Candidate]:
        """Yield the default, and then each format with its default steps."""
        for formats in self.formats:
            yield Candidate(formats)

    def dimensions(self, formats: Formats) -> Mapping[str, tuple[Value, ...]]:
        """Return the decisions that may change something with *formats*, and their values."""
        if formats not in self._dimensions:
            plain = self._steps(Candidate(formats))
            cut = self._steps(Candidate(formats, (("rows", self.template.cut),)))
            if plain is None or cut is None:
                return {}
            steps = {step.name for _, step in (*plain, *cut)}
            names = self.template.relevant(plain, cut, steps)
            found = {name: values for name in names if (values := self.values[name])[1:]}
            if fewer := _fewer(self.threads):
                found["threads"] = (DEFAULT, *fewer)
            self._dimensions[formats] = found
        return self._dimensions[formats]

    def choice(self, candidate: Candidate) -> Choice | None:
        """Return how *candidate* is compiled; None where its steps cannot be."""
        if candidate.own is not None:
            return candidate.own
        threads = dict(candidate.decisions).get("threads")
        count = threads if isinstance(threads, int) else None
        if candidate.with_decision("threads", DEFAULT).decisions == ():
            return Choice(candidate.formats, threads=count)
        trace = self._steps(candidate)
        if trace is None:
            return None
        return Choice(candidate.formats, trace, tuple(sorted(self.extents.items())), count)

    def candidate(self, choice: Choice, numbers: Mapping[str, float]) -> Candidate:
        """Return the candidate that is compiled as *choice*, with the decisions of *numbers*.

        Where these do not give that choice, it is one without decisions that has it as its own.
        """
        found, own = Candidate(choice.formats), Candidate(choice.formats, own=choice)
        if choice.formats not in self.formats:
            return own
        for name, values in self.dimensions(choice.formats).items():
            number = numbers.get(f"decides_{name}")
            for value in values[1:]:
                if float(_WORDS.get(value, value)) == number:
                    found = found.with_decision(name, value)
        return found if self.choice(found) == choice else own

    def scheduled(self, candidate: Candidate) -> Func | None:
        """Return the program of *candidate* in position space; None if it has several phases."""
        base = self._base_of(candidate.formats)
        return base.schedule(self, dict(candidate.decisions))[1] if base.is_single else None

    def random(self, rng: Random, formats: Formats, changes: int) -> Candidate:
        """Return a candidate with *formats* and up to so many decisions drawn at random."""
        candidate = Candidate(formats)
        for _ in range(changes):
            candidate = self.mutated(rng, candidate)
        return candidate

    def mutated(self, rng: Random, candidate: Candidate) -> Candidate:
        """Return *candidate* with one decision changed; the same if there is none."""
        dimensions = self.dimensions(candidate.formats)
        if not dimensions:
            return candidate
        name = rng.choice(sorted(dimensions))
        now = dict(candidate.decisions).get(name, DEFAULT)
        return candidate.with_decision(
            name, rng.choice([value for value in dimensions[name] if value != now])
        )

    def crossed(self, rng: Random, first: Candidate, second: Candidate) -> Candidate:
        """Return a candidate with the formats of *first* and decisions of either."""
        mine, other = dict(first.decisions), dict(second.decisions)
        child = Candidate(first.formats)
        for name, values in self.dimensions(first.formats).items():
            value = rng.choice((mine, other)).get(name, DEFAULT)
            child = child.with_decision(name, value if value in values else DEFAULT)
        return child

    def everything(self, formats: Formats) -> Iterator[Candidate]:
        """Yield all candidates with *formats*, the default first."""
        dimensions = self.dimensions(formats)
        for values in product(*dimensions.values()):
            chosen = zip(dimensions, values, strict=True)
            decisions = tuple(sorted((k, v) for k, v in chosen if v != DEFAULT))
            yield Candidate(formats, decisions)

    def _steps(self, candidate: Candidate) -> Trace | None:
        base = self._base_of(candidate.formats)
        return base.schedule(self, dict(candidate.decisions))[0]

    def _base_of(self, formats: Formats) -> _Base:
        if formats not in self._bases:
            self._bases[formats] = self._base({name: format_of(text) for name, text in formats})
        return self._bases[formats]

    def _base(self, layouts: Mapping[str, ComposableFormat]) -> _Base:
        """Return the program with matrices in *layouts*, in position space; raises SpcompError."""
        func = self.func
        if layouts:
            if not isinstance(func, CoordFunc):
                raise LoweringError("the program is below coordinate space")
            func = with_parts(func, layouts).func
        target = backend_of(self.options.target.kind).resolve(self.options.target)
        constants = {**self.options.constants, **self.extents}
        with without_warnings():
            module = legal(as_module(func, constants))
            if isinstance(func, CoordFunc):
                module = to_position(target).run(module, None)
        return _Base(tuple(map(distinct, module.funcs)), {})


def _fewer(threads: int) -> Sequence[int]:
    """Return smaller numbers of threads that are worth a try."""
    return tuple(sorted({1, max(threads // 2, 1)} - {threads}))


@dataclass(frozen=True, slots=True)
class _Base:
    """The functions of a program in position space, before steps, and traces made of them."""

    funcs: tuple[Func, ...]
    made: dict[tuple[Any, ...], tuple[Trace | None, Func | None]]

    @property
    def is_single(self) -> bool:
        return len(self.funcs) == 1

    def schedule(self, space: Space, decisions: Decisions) -> tuple[Trace | None, Func | None]:
        """Return the steps with these decisions, and the last function after them."""
        key = tuple(sorted((k, v) for k, v in decisions.items() if k != "threads"))
        if key not in self.made:
            self.made[key] = self._schedule(space, dict(key))
        return self.made[key]

    def _schedule(self, space: Space, decisions: Decisions) -> tuple[Trace | None, Func | None]:
        target = backend_of(space.options.target.kind).resolve(space.options.target)
        trace, last = Trace(), None
        for func in self.funcs:
            if not isinstance(func, PosFunc):
                return None, None
            last, steps = space.template.schedule(func, target, space.facts, decisions)
            trace = trace.extend(func.name, steps)
        return trace, last
