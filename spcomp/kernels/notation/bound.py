"""Around the route: a kernel of index notation with some arguments fixed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import copy
from typing import TYPE_CHECKING, Any

import numpy as np

from spcomp.arrays import Array
from spcomp.errors import ArgumentError, SpcompError, outside
from spcomp.formats.rules import ComposableFormat as Format
from spcomp.kernels.elsewhere import door_of
from spcomp.kernels.notation.arguments import Source
from spcomp.kernels.notation.call import BoundArguments, with_named_outputs
from spcomp.kernels.notation.explained import explained
from spcomp.kernels.notation.fast_path import FastPath
from spcomp.kernels.notation.repeats import Repeats
from spcomp.kernels.notation.runner import Runner
from spcomp.kernels.notation.specialized import SpecializedKernel
from spcomp.kernels.notation.stored import INDEX_ARRAYS, copied, look_at
from spcomp.kernels.protocol import Bound, InnerCall, Runnable
from spcomp.notation.layout import Layout
from spcomp.notation.nodes import Program, accesses
from spcomp.notation.vectors import vectors_of
from spcomp.notation.windows import Windows
from spcomp.runtime.cuda.arrays import array_of, described, lies_there, place_of
from spcomp.runtime.replay.entry import indices_ok
from spcomp.runtime.residents import Residents
from spcomp.target import on_gpu
from spcomp.tensors import checks as validate
from spcomp.tensors.libraries.foreign import arrays_of, bridge, is_torch
from spcomp.tensors.libraries.scipy import is_scipy
from spcomp.tensors.storage import is_parts
from spcomp.tensors.tensor import Tensor

if TYPE_CHECKING:
    from spcomp.compiler.interface import Signature

_NONE: Mapping[str, Any] = {}


class BoundNotation(Bound):
    """A NotationKernel with some arguments fixed; call it with the others by name."""

    def __init__(self, kernel: Runnable, runner: Runner, arguments: dict[str, Any]) -> None:
        planner = runner.planner
        kept = kept_arguments(planner.written, arguments, {**planner.wanted, **planner.stored})
        if on_gpu(runner.options.target):  # each kind of call puts values there for itself
            for name in kept.keys() - runner.outputs:
                kept[name] = kept[name] if lies_there(kept[name]) else copied(kept[name])
        super().__init__(kernel, kept)
        self._runner, self._bound = runner, BoundArguments.of(kept)
        self._repeats = Repeats(runner, self._bound) if on_gpu(runner.options.target) else None
        bound = self._bound
        path = bound.fast_path = FastPath(runner, bound)
        self._fast = None if bound.has_torch or self._repeats is not None else path.run

    def __call__(self, /, *, out: Any = None, **named: Any) -> Any:
        """Run the program on the bound arguments and *named*; returns as the kernel does."""
        try:
            if self._fast is not None:
                result = self._fast(out, named)
                if result is not NotImplemented:
                    return result
            return self._full(out, named)
        except SpcompError as error:
            raise outside(error)  # noqa: B904 (it is the same error)

    def _full(self, out: Any, named: dict[str, Any]) -> Any:
        """Run a call that is like no earlier one, or not on numpy's arrays alone."""
        if self._repeats is not None:
            return self._repeats.run(out, named, self.refuse_bound)
        self.refuse_bound(named)
        if (door := door_of(named.values())) is not None:
            return door.call(self.kernel, out, {**self.arguments, **named})
        if not self._runner.outputs.isdisjoint(named):
            out, named = with_named_outputs(out, named, self._runner.outputs)
        return self._runner.call(out, named, self._bound)

    def explain(self, /, **named: Any) -> str:
        """Return what was decided, and why, for arguments like *named* and the bound ones.

        Without any, for those of the last call; raises ArgumentError if there was none.
        """
        missing = [name for name in self._runner.arguments if name not in self.arguments]
        if named or not missing:
            call = self._tuned_call(named)
            if call is None:
                return super().explain(**named)
            call.kernel.choose(**call.arguments)
            return explained(self._runner, self._runner.last, {}, call.kernel)
        if (latest := self._bound.latest) is not None:
            return explained(self._runner, latest, {}, self._bound.kernels.get(latest))
        raise ArgumentError(
            f"{self.name}: formats and dtypes of {', '.join(missing)} are not known yet",
            hint="call it first, or give the arguments here",
        )

    def specialize(self, /, **named: Any) -> Any:
        """Return the kernel that a call with arguments like these runs; compiled if need be."""
        call = self._tuned_call(named)
        if call is None or not call.kernel.chooses:
            return super().specialize(**named)
        return SpecializedKernel(self.kernel, call.kernel.choose(**call.arguments))

    def inner_call(self, named: Mapping[str, Any]) -> InnerCall:
        """Return the call of another kernel that a call with *named* comes down to."""
        return self._tuned_call(named) or super().inner_call(named)

    def _tuned_call(self, named: Mapping[str, Any]) -> InnerCall | None:
        """Return the call of the kernel for which a tuner decides; None if there is none."""
        if self._runner.options.tuned is None:
            return None
        self.refuse_bound(named)
        rest = dict(named)
        sizes = {} if "sizes" in self._runner.arguments else rest.pop("sizes", {})
        return self._runner.kernel_call(None, arrays_of(rest), self._bound, sizes)

    @property
    def signature(self) -> Signature:
        """The signature of the kernel that ran last, without the bound arguments."""
        return self._only_kernel().signature.without(self.arguments)

    def kernels(self) -> tuple[Runnable, ...]:
        """Return the kernels that ran last, in order. Raises ArgumentError if none has."""
        ran = self._bound.kernels.get(self._bound.latest)
        return super().kernels() if ran is None else ran.kernels()

    def check(self) -> None:
        """Wait for calls on a GPU that nothing waited for; raises ArgumentError if one failed."""
        for kernel in self._bound.kernels.values():
            kernel.check()


def kept_arguments(
    program: Program, arguments: Mapping[str, Any], formats: Mapping[str, Layout | Format] = _NONE
) -> dict[str, Any]:
    """Return the *arguments* of *program* that are fixed now, with private index arrays.

    What calls convert gets private values, too: each kind of call converts it for itself, and all
    have to see the same. *formats*: those that the user asked for, by name. Raises ArgumentError
    for an index vector with negative numbers, and what no call takes.
    """
    vectors = vectors_of(program)
    kept = {n: _vector(n, x) if n in vectors else _kept(n, x) for n, x in arguments.items()}
    windows: dict[str, list[Windows]] = {}
    for access in (a for stmt in program.statements for a in accesses(stmt.value)):
        windows.setdefault(access.name, []).append(access.windows)
    for name in [n for n in kept if n in windows and n not in vectors]:
        if _is_converted(name, kept[name], formats.get(name), windows[name]):
            kept[name] = copied(kept[name])
    for name, vector in arrays_of({n: kept[n] for n in vectors & kept.keys()}).items():
        _require_coordinates(name, vector)
    return kept


def _vector(who: str, arg: Any) -> Any:
    """Return a private copy of *arg*, the index vector *who*; what is none is refused later."""
    if lies_there(arg):
        place = place_of([arg])
        return Residents(place).clone(array_of(arg, place, who)).owner
    if is_torch(arg):
        return arg.clone()
    if isinstance(arg, Tensor):  # its levels cannot change
        return arg.with_values(np.array(arg.values))
    if not isinstance(arg, np.ndarray) and hasattr(arg, "__array__") and not is_scipy(arg):
        arg = validate.as_array(who, arg)
    return _private(arg)


def _require_coordinates(who: str, vector: Any) -> None:
    """Raise ArgumentError if *vector* has a negative number: no length makes that one right."""
    if not isinstance(vector, np.ndarray) or vector.dtype.kind != "i" or not vector.size:
        return
    if vector.min() < 0:
        flat = vector.reshape(-1)
        at = int(np.flatnonzero(flat < 0)[0])
        raise ArgumentError(
            f"argument {who}: got {flat[at]} at position {at}, expected 0 or more",
            hint="an index vector has coordinates, which are counted from 0",
        )


def _kept(who: str, arg: Any) -> Any:
    """Return *arg* with private index arrays; values that lie apart from them are shared."""
    if lies_there(arg):
        return described(who, arg)
    if is_torch(arg):
        return bridge().with_private_indices(arg)
    if not is_scipy(arg):
        is_foreign = hasattr(arg, "nnz") and hasattr(arg, "copy") and not isinstance(arg, Tensor)
        return arg.copy() if is_foreign else arg
    if arg.format not in INDEX_ARRAYS:
        return arg.copy()
    kept = copy(arg)  # shallow: the values are those of the user
    for name in INDEX_ARRAYS[arg.format]:
        array = getattr(arg, name)
        private = tuple(map(_private, array)) if name == "coords" else _private(array)
        setattr(kept, name, private)
    return kept


def _is_converted(
    who: str, arg: Any, wanted: Layout | Format | None, windows: Iterable[Windows]
) -> bool:
    """Whether calls convert or copy *arg*, one that is kept, because of what it is.

    *wanted*: the format that the user asked for. *windows*: those that the program reads. Raises
    ArgumentError for what no call takes.
    """
    if lies_there(arg) or is_parts(arg):
        return False
    if wanted is not None and (not isinstance(wanted, Layout) or wanted.is_split):
        return True  # it is stored in parts, or in blocks
    if str(getattr(arg, "dtype", "")) in ("torch.bfloat16", "torch.float16"):
        return True
    shape = getattr(arg, "shape", None)
    if not isinstance(shape, tuple):
        return False
    layout = wanted if wanted and wanted.rank == len(shape) else None
    arg = arrays_of({who: arg})[who]
    if not isinstance(arg, np.ndarray) or (layout and not layout.is_dense):
        argument = Source(who, arg, len(shape)).argument(layout, direct=True)
        return argument.converts or any(windows) or not _is_in_order(who, arg)
    parts = [look_at(who, arg, window)[0] for window in windows if window]
    return not _is_whole(arg) or not all(np.may_share_memory(arg, part) for part in parts)


def _is_whole(array: Array) -> bool:
    """Whether machine code reads *array* where it lies."""
    flags = array.flags
    contiguous = flags.c_contiguous or flags.f_contiguous
    return bool(contiguous and flags.aligned and array.dtype.isnative and array.ndim)


def _is_in_order(who: str, arg: Any) -> bool:
    """Whether the csr or csc array *arg* is used where it lies: sorted, without repetition."""
    if not is_scipy(arg):
        return True
    arrays = arg.data, arg.indices, arg.indptr
    if not all(isinstance(array, np.ndarray) and array.ndim == 1 for array in arrays):
        return True  # the call says what is wrong
    if not _is_whole(arg.data):
        return False
    fibers, minor = arg.shape if arg.format == "csr" else arg.shape[::-1]
    pointers = arg.indptr, fibers, arg.indices.size
    validate.pointers(f"{who}.indptr", *pointers)  # machine code below relies on them
    if indices_ok(arg.indices, 0, minor - 1, 2, arg.indptr):
        return True
    steps = np.flatnonzero(arg.indices[1:] <= arg.indices[:-1]) + 1
    return bool(np.isin(steps, arg.indptr).all())


def _private(array: Any) -> Any:
    """Return a private copy of *array*; what is none of integers is refused later."""
    if not isinstance(array, np.ndarray):
        return array
    return validate.private(array) if array.dtype.kind in "iu" else array.copy()
