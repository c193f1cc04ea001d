"""Results beside what the oracle says: types, shapes, patterns and numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import spcomp
from tests.second import oracle
from tests.second import terms as t
from tests.second.values import Array, Value


class Failure(Exception):
    """A program that does not do what the documentation says."""

    def __init__(self, kind: str, text: str, arguments: Mapping[str, Any] | None = None) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind
        self.text = text
        self.arguments = dict(arguments or {})


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
    except Exception as unusable:  # by its own library
        raise Failure("result", f"{name}: {type(result).__name__}: {unusable!r}") from unusable
    number, present, error = value.number, value.present, value.error
    if got.shape != number.shape:
        raise Failure("shape", f"{name} has shape {got.shape}, expected {number.shape}")
    wider = type(result).__module__.startswith("torch") and number.dtype == np.float16
    if got.dtype != number.dtype and not (wider and got.dtype == np.float32):
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
    match statement.value:
        case t.Op("neg", _):
            return [*out, *(-one for one in out)]
        case t.Masked(t.Op("neg", _), _, None):  # where the mask holds, nothing reduced is negated
            return [*(-one for one in out), *out]
    return out


def filled(statement: t.Statement, value: Value, ring: tuple[str, str]) -> Value:
    """Return *value* as an array holds it: what is absent is 0, or nothing reduced."""
    if isinstance(statement.value, t.Reduce):  # a reduction of nothing is a value
        return Value(value.number, np.ones(value.number.shape, bool), value.error, value.weak)
    empty = neutrals(statement, ring, value.dtype)[-1]
    number = np.where(value.present, value.number, np.asarray(empty).astype(value.dtype))
    return Value(number, np.ones(number.shape, bool), value.error, value.weak)
