"""A random program, its kernels, and calls of them: everything that a seed stands for."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np

import spcomp
from spcomp.errors import SpcompError
from tests.second import grammar, operands, oracle, spellings
from tests.second import terms as t
from tests.second.operands import Storage
from tests.second.values import Array, Value, cast, common, eps, exact, merged

CALLS = 16  # eight for each of two ways to store the operands
MOST = 60_000  # coordinates that the oracle looks at
PLAIN = (int, float, bool)  # Python numbers, whose types give way
Sizes = Mapping[str, int]


class Failure(Exception):
    """A program that does not do what the documentation says."""

    def __init__(self, kind: str, text: str, arguments: Mapping[str, Any] | None = None) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind
        self.text = text
        self.arguments = dict(arguments or {})


class Refusal(Exception):
    """An SpcompError, which is an answer, too."""


@dataclass
class Trial:
    """A program, how its operands are stored in either variant, and how it is called."""

    program: grammar.Program
    storages: tuple[dict[str, Storage], dict[str, Storage]]
    seed: int
    calls: int = CALLS
    most: int = 130  # no dimension is longer
    counts: dict[str, int] = field(default_factory=lambda: {"calls": 0, "versions": 0})


def used(program: grammar.Program) -> set[str]:
    """Return the tensors that *program* reads."""
    terms = [term for statement in program.statements for term in statement.value.walk()]
    added = [statement.target.name for statement in program.statements if statement.sign != "="]
    return {term.name for term in terms if isinstance(term, t.Ref)} | set(added)


def _constants(program: grammar.Program, rng: Random) -> None:
    """Make constants of numbers of *program*, at times."""
    for name, one in list(program.operands.items()):
        if not one.extents and rng.random() < 0.2:
            del program.operands[name]
            program.constants[name] = rng.choice((0, 1, 2, 3, 0.5, -1.5))


def trial(seed: int) -> Trial:
    """Return the trial that *seed* stands for."""
    rng = Random(seed)
    program = grammar.program(rng)
    names = used(program)
    program.operands = {name: one for name, one in program.operands.items() if name in names}
    _constants(program, rng)
    both: tuple[dict[str, Storage], dict[str, Storage]] = ({}, {})
    for name, one in program.operands.items():
        known = operands.storages(len(one.extents), one.dtype, sparse=one.sparse)
        weights = [operands.WEIGHTS.get(storage.name, 1.0) for storage in known]
        chosen = rng.choices(known, weights, k=2) if name != "C" else [known[0]] * 2
        if not one.extents and "python" in [storage.name for storage in chosen]:
            chosen[1] = chosen[0]
        for variant, storage in zip(both, chosen, strict=True):
            variant[name] = storage
    return Trial(program, both, seed)


@dataclass
class Data:
    """What a call is given, apart from how it is stored."""

    sizes: Sizes
    numbers: dict[str, Array]
    masks: dict[str, Array]


def random_sizes(program: grammar.Program, rng: Random, most: int) -> dict[str, int]:
    """Return a length for each label, such that the program is not too much work."""
    labels = sorted(
        {
            extent
            for one in program.operands.values()
            for extent in one.extents
            if isinstance(extent, str)
        }
    )
    sizes = {label: rng.choice((0, 1, 1, 2, 3, 4, 5, 6, 8, 9)) for label in labels}
    if labels and rng.random() < 0.35:
        sizes[rng.choice(labels)] = rng.choice((16, 17, 33, 64, 65, 130))
    deep = max(_depth(statement) for statement in program.statements)
    while labels and max(max(sizes.values()), 1) ** min(2, deep) * 9 ** max(0, deep - 2) > MOST * 4:
        sizes[max(sizes, key=sizes.__getitem__)] = rng.choice((2, 3, 5))
    while labels and max(sizes.values()) ** deep > 40 * MOST:
        sizes[max(sizes, key=sizes.__getitem__)] = rng.choice((1, 2, 3, 5))
    return {label: min(size, most) for label, size in sizes.items()}


def _depth(statement: t.Statement) -> int:
    names = {place.name for place in statement.target.places}  # type: ignore[union-attr]
    over = 0
    for term in statement.value.walk():
        names |= {
            place.name for place in getattr(term, "places", ()) if not isinstance(place, t.Fixed)
        }
        over += len(term.over) if isinstance(term, t.Reduce) else 0
    return min(len(names) + over // 2, oracle.RANK)


def random_data(case: Trial, sizes: Sizes, rng: Random, before: Data | None) -> Data:
    """Return numbers and masks for a call; at times the masks of the call *before*."""
    numbers: dict[str, Array] = {}
    masks: dict[str, Array] = {}
    keep = before is not None and before.sizes == sizes and rng.random() < 0.3
    for name, one in case.program.operands.items():
        shape = tuple(
            sizes[extent] if isinstance(extent, str) else extent for extent in one.extents
        )
        chosen = [variant[name] for variant in case.storages]
        if not one.sparse:
            masks[name] = np.ones(shape, bool)
        elif keep and before is not None:
            masks[name] = before.masks[name]
        else:
            mask = operands.random_mask(shape, rng)
            for _ in range(3):
                for storage in chosen:
                    mask = storage.close(mask)
            masks[name] = mask
        zeros = not one.sparse or (all(storage.zeros for storage in chosen) and rng.random() < 0.3)
        numbers[name] = operands.random_numbers(shape, one.dtype, rng, zeros=zeros)
        if not all(storage.fits(shape) for storage in chosen):
            raise Refusal("the shape does not fit the storage")
    return Data(sizes, numbers, masks)


def arguments(case: Trial, variant: int, data: Data, rng: Random) -> dict[str, Any]:
    """Return the arguments of a call."""
    out: dict[str, Any] = {}
    for name, storage in case.storages[variant].items():
        try:
            out[name] = storage.make(data.numbers[name], data.masks[name], rng)
        except SpcompError as error:
            raise Refusal(f"{storage.name}: {error}") from error
    alike = [
        (one, two)
        for one in out
        for two in out
        if one < two
        and case.program.operands[one] == case.program.operands[two]
        and case.storages[variant][one] is case.storages[variant][two]
        and case.program.operands[one].extents
        and "C" not in (one, two)
    ]
    if alike and rng.random() < 0.1:  # the same object twice
        one, two = rng.choice(alike)
        out[two] = out[one]
        data.numbers[two], data.masks[two] = data.numbers[one], data.masks[one]
    return out


def expected(case: Trial, data: Data, given: Mapping[str, Any]) -> dict[str, Value]:
    """Return what the program returns: what it assigns and does not read again."""
    tensors: dict[str, oracle.Operand] = {}
    for name, value in case.program.constants.items():
        tensors[name] = oracle.Operand(exact(value, weak=value))
    for name, one in case.program.operands.items():
        number = np.where(data.masks[name], data.numbers[name], np.zeros((), one.dtype))
        if type(given[name]) in PLAIN:
            number = number.astype(_argument_type(case.program, given, name))
        tensors[name] = oracle.Operand(exact(number, data.masks[name]), one.sparse)
    results: dict[str, Value] = {}
    read = used(case.program) - set(case.program.operands) - set(case.program.constants)
    for statement in case.program.statements:
        name = statement.target.name
        value = oracle.assigned(statement, tensors, case.program.ring())
        if statement.sign != "=":
            add = case.program.ring()[0] if statement.sign == "+=" else "-"
            before = tensors[name].value
            value = merged(add, before, _narrowed(value, before.dtype))
        tensors[name] = oracle.Operand(_dense(statement, value, case.program.ring()))
        if name not in read:
            results[name] = value
    return results


def _argument_type(program: grammar.Program, given: Mapping[str, Any], name: str) -> Any:
    """Return the type of a Python number: that which the other arguments have together."""
    others = [
        one.dtype for other, one in program.operands.items() if type(given[other]) not in PLAIN
    ]
    if not others:
        return np.asarray(given[name]).dtype
    together = common([exact(np.zeros((), dtype)) for dtype in others])
    return np.dtype("float64") if together.kind != "f" and type(given[name]) is float else together


def _narrowed(value: Value, dtype: Any) -> Value:
    """Return *value* as it is added to a result of *dtype*, term by term."""
    out = cast(value, dtype)
    if "f" not in (value.dtype.kind, out.dtype.kind) or not eps(value.dtype):
        return out
    return Value(out.number, out.present, out.error * max(1.0, eps(out.dtype) / eps(value.dtype)))


def _dense(statement: t.Statement, value: Value, ring: tuple[str, str]) -> Value:
    """Return *value* as an array holds it: what is absent is 0, or nothing reduced."""
    empty = neutrals(statement, ring, value.dtype)[-1]
    number = np.where(value.present, value.number, np.asarray(empty).astype(value.dtype))
    return Value(number, np.ones(number.shape, bool), value.error, value.weak)


def opened(result: Any) -> tuple[Array, Array | None]:
    """Return a result as an array, and where it stores elements, if it is sparse."""
    if type(result).__module__.startswith("torch"):
        import torch

        if result.layout != torch.strided:
            return opened(spcomp.Tensor.from_torch(result))
        return result.numpy(), None
    if hasattr(result, "tocoo"):
        coo = result.tocoo()
        mask = np.zeros(coo.shape, bool)
        mask[coo.coords] = True
        return np.asarray(coo.toarray()), mask
    if isinstance(result, spcomp.Parts):
        return opened(result.to("csr"))
    if isinstance(result, spcomp.Tensor):
        mask = np.zeros(result.shape, bool)
        mask[result.coordinates()] = True
        return result.to_dense(), None if result.layout.is_dense else mask
    return np.asarray(result), None


def compare(name: str, result: Any, value: Value, neutral: Sequence[float]) -> None:
    """Raise a Failure if *result* is not *value*, what is absent 0 or one of *neutral*."""
    try:
        got, stored = opened(result)
    except Exception as error:  # a result that its own library cannot use
        raise Failure("result", f"{name}: {type(result).__name__}: {error!r}") from error
    number, present, error = value.number, value.present, value.error
    if got.shape != number.shape:
        raise Failure("shape", f"{name} has shape {got.shape}, expected {number.shape}")
    if got.dtype != number.dtype:
        raise Failure("dtype", f"{name} is {got.dtype}, expected {number.dtype}")
    known = ~np.isinf(error)
    if stored is not None and (known & present & ~stored & (number != 0)).any():
        at = tuple(np.argwhere(known & present & ~stored & (number != 0))[0].tolist())
        raise Failure("pattern", f"{name}{list(at)} is not stored, expected {number[at]}")
    inside = present if stored is None else present & stored
    close = _close(got, number, error)
    empty = np.zeros(got.shape, bool)
    for one in neutral:
        with np.errstate(all="ignore"):
            empty |= got == np.asarray(one).astype(got.dtype)
    wrong = known & ~np.where(inside, close, empty)
    if wrong.any():
        at = tuple(np.argwhere(wrong)[0].tolist())
        what = f"{number[at]} (within {error[at]:.3g})" if inside[at] else f"nothing, as {neutral}"
        raise Failure(
            "value", f"{name}{list(at)} is {got[at]}, expected {what}; {wrong.sum()} such"
        )


def _close(got: Array, number: Array, error: Array) -> Array:
    if got.dtype.kind != "f":
        return np.asarray(got == number)
    with np.errstate(all="ignore"):
        off = np.abs(got.astype("float64") - number.astype("float64"))
        same = (got == number) | (np.isnan(got) & np.isnan(number))
        return np.asarray(same | (off <= 4 * error))


def neutrals(statement: t.Statement, ring: tuple[str, str], dtype: Any) -> list[float]:
    """Return what may stand where nothing is present."""
    reductions = [term.name for term in statement.value.walk() if isinstance(term, t.Reduce)]
    names = [name for name in reductions if not name.startswith("arg")]
    out: list[float] = [0, *(oracle.neutral(name, dtype) for name in names)]
    if ring[0] != "+":
        out.append(oracle.neutral(oracle.REDUCED[ring[0]], dtype))
    if isinstance(statement.value, t.Op) and statement.value.name == "neg":
        out += [-one for one in out]
    return out


def compiled(program: grammar.Program, rng: Random) -> Any:
    """Return the kernel of *program*, at times made of Python objects."""
    semiring: Any = program.semiring
    if " " in semiring:
        semiring = spcomp.Semiring(*semiring.split())
    source: Any = program.text()
    if rng.random() < 0.15:
        objects = spellings.as_objects(program)
        source = source if objects is None else objects
    options: dict[str, Any] = {"functions": spellings.FUNCTIONS} if "own_" in program.text() else {}
    if program.constants:
        options["constants"] = program.constants
    return spcomp.compile(source, formats=program.formats, semiring=semiring, **options)


def called(kernel: Any, fixed: list[str], given: dict[str, Any], options: dict[str, Any]) -> Any:
    """Return what *kernel* gives, those of its arguments bound that are *fixed*."""
    rest = {name: value for name, value in given.items() if name not in fixed}
    try:
        if fixed:
            kernel = kernel.bind(**{name: given[name] for name in fixed})
        return kernel(**rest, **options)
    except SpcompError:
        raise
    except Exception as error:
        raise Failure(type(error).__name__, str(error)) from error


def spelled_otherwise(program: grammar.Program, given: dict[str, Any], found: Any) -> Any:
    """Return what einsum gives, if *program* is one, else *found*."""
    spelled = spellings.as_einsum(program)
    if spelled is None or " " in program.semiring:
        return found
    subscripts, names = spelled
    try:
        return spcomp.einsum(
            subscripts, *(given[name] for name in names), semiring=program.semiring
        )
    except SpcompError as error:
        raise Failure("einsum", f"refused, the kernel was not: {error}") from error


def _specialized(kernel: Any, given: dict[str, Any]) -> None:
    """Read the stages of *kernel* back, if it is one program."""
    try:
        single = kernel.specialize(**given)
    except SpcompError:
        return
    try:
        spellings.read_back(single)
    except Exception as error:
        raise Failure("read back", f"{type(error).__name__}: {error}") from error


def check(case: Trial, kernel: Any, given: dict[str, Any], data: Data, rng: Random) -> None:
    """Call *kernel* with *given* and compare."""
    want = expected(case, data, given)
    options: dict[str, Any] = {}
    (name,) = want if len(want) == 1 else ("",)
    if (
        name
        and rng.random() < 0.1
        and not case.program.formats
        and name not in case.program.operands
    ):
        options["out"] = np.full(want[name].number.shape, 7, want[name].dtype)
    if rng.random() < 0.1:
        spcomp.set_num_threads(rng.choice((1, 2, 3)))
    fixed: list[str] = []
    if rng.random() < 0.1 and len(given) > 1:
        fixed = rng.sample(sorted(given), rng.randrange(1, len(given)))
        fixed = [one for one in fixed if one != "C"]
    case.counts["calls"] += 1
    found = called(kernel, fixed, given, options)
    if rng.random() < 0.05 and not case.program.formats and not options:
        found = spelled_otherwise(case.program, given, found)
    if rng.random() < 0.05:
        _specialized(kernel, given)
    if options and found is not options["out"]:
        raise Failure("out", "what is returned is not what was given as out=")
    results = [found] if len(want) == 1 else list(found)
    if len(results) != len(want):
        raise Failure("results", f"{len(results)} results, expected {list(want)}")
    statements = {statement.target.name: statement for statement in case.program.statements}
    try:
        for (one, value), result in zip(want.items(), results, strict=True):
            compare(one, result, value, neutrals(statements[one], case.program.ring(), value.dtype))
    except Failure as failure:
        ways = "out=, " * bool(options) + f"bound {fixed}" * bool(fixed)
        raise Failure(
            f"{'out ' * bool(options)}{failure.kind}", f"{failure.text} {ways}"
        ) from failure


def run(case: Trial) -> str:
    """Run *case*; returns "" or why it was refused, raises Failure."""
    rng = Random(case.seed + 1)
    program = case.program
    try:
        kernel = compiled(program, rng)
    except SpcompError as error:
        return str(error)
    except Exception as error:
        raise Failure(type(error).__name__, str(error)) from error
    refused, accepted = "", [0, 0]
    sizes = random_sizes(program, rng, case.most)
    data: Data | None = None
    order = rng.choice(([0] * 8 + [1] * 8, [0, 1] * 8, [rng.randrange(2) for _ in range(16)]))
    for variant in order[: case.calls]:
        if rng.random() < 0.12:
            sizes = random_sizes(program, rng, case.most)
        given: dict[str, Any] = {}
        try:
            if data is None or rng.random() < 0.9 or data.sizes != sizes:
                data = random_data(case, sizes, rng, data)
            given = arguments(case, variant, data, rng)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                check(case, kernel, given, data, rng)
            accepted[variant] += 1
        except Refusal as error:
            refused = refused or f"storage: {error}"
        except SpcompError as error:
            refused = str(error)
        except Failure as failure:
            failure.arguments = given
            raise
    case.counts["versions"] += sum(count > 0 for count in accepted)
    return "" if any(accepted) else refused
