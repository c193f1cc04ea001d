"""At a conversion on a GPU: a sparse matrix there, stored by rows, by columns or as coordinates."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np

from spcomp.codegen.nvvm import ALIGN
from spcomp.compiler.programs import Program
from spcomp.dtypes import DType
from spcomp.dtypes import dtype as dtype_of
from spcomp.errors import ArgumentError
from spcomp.formats.format import Format
from spcomp.runtime.cuda import memory, sparse
from spcomp.runtime.cuda.arrays import DeviceArray, array_of, is_sparse, place_of, to_host
from spcomp.runtime.cuda.driver import device_properties
from spcomp.runtime.cuda.sparse import DeviceSparse, sparse_from, sparse_of
from spcomp.runtime.residents import Resident, Residents
from spcomp.target import Target
from spcomp.tensors import verdict
from spcomp.tensors.cache import Cache, Means
from spcomp.tensors.checks import Pointers, in_range
from spcomp.tensors.conversions import digits
from spcomp.tensors.conversions.digits import CHUNK, DIGIT, VALUES
from spcomp.tensors.conversions.keys import BITS, INT32, bits_of, index_type
from spcomp.tensors.conversions.levels import Duplicates, checked_count, refuse_repeated
from spcomp.tensors.conversions.order import refuse_outside
from spcomp.tensors.device_tensor import DeviceTensor
from spcomp.tensors.levels import Level
from spcomp.tensors.verdict import Verdict

_ROWS: Cache[DeviceTensor] = Cache(8)  # the memory of a GPU is small
FORMATS: tuple[sparse.Format, ...] = ("csr", "csc", "coo")
Layout: TypeAlias = Literal[sparse.Format, "ell"]


def converted(x: Any, layout: Any, duplicates: Duplicates) -> Any:
    """Return *x*, a sparse matrix of PyTorch or CuPy on a GPU, in the format *layout*, there.

    ``ell`` is one of ours, a DeviceTensor.

    It waits for what decides how large arrays are and whether they are valid; the result depends on
    the elements only. Raises ArgumentError.
    """
    if layout not in (*FORMATS, "ell"):
        raise ArgumentError(
            f"argument format: got {layout}, and on a GPU there are {', '.join(FORMATS)} and ell",
            hint="convert a copy on the host: x.cpu() of PyTorch, x.get() of CuPy",
        )
    if layout == "ell" and duplicates == "keep":
        raise ArgumentError("argument duplicates: ell on a GPU has no place for repeated elements")
    place = place_of([x])
    if not is_sparse(x):
        raise ArgumentError(
            f"argument x: got {type(x).__name__} on a GPU, expected a sparse matrix",
            hint="make one with .to_sparse_csr() of PyTorch or csr_matrix(x) of CuPy",
        )
    matrix = sparse_of(x, place)
    if matrix.format not in FORMATS or len(matrix.shape) != 2:
        raise ArgumentError(
            f"argument x: got {matrix.format} of {len(matrix.shape)} dimensions on a GPU",
            hint=f"matrices are converted there, from {', '.join(FORMATS)}",
        )
    return _Conversion.of(matrix.data.size, Residents(place)).run(matrix, layout, duplicates)


def rows_of(who: str, vector: Any, count: int) -> DeviceTensor:
    """Return a csr matrix of *count* rows: row n has the positions at which *vector* has n.

    *vector* lies on a GPU, and so does the result; its elements are ones. It is kept: a later call
    with the same contents gets the same matrix. Raises ArgumentError about the argument *who*
    where a number is no row.
    """
    place = place_of([vector])
    there = Residents(place)
    array = array_of(vector, place, who)
    if len(array.shape) != 1:
        dims = len(array.shape)
        raise ArgumentError(f"argument {who}: got {dims} dimensions, but 1 index stands at it")
    work = _Conversion.of(array.size, there, count)

    def same(first: DeviceArray, second: DeviceArray) -> bool:
        return Verdict(there, work.target).same(there.resident(first), there.resident(second))

    means = Means(lambda a: (a.pointer, a.shape, a.dtype, a.device, a.library), same, there.clone)
    return _ROWS.get(count, (array,), lambda: work.rows(who, array, count), means)


@dataclass(frozen=True, slots=True)
class _Conversion:
    """The programs of a conversion of *n* elements in *memory*, for the *target* there."""

    memory: Residents
    target: Target
    n: int
    number: str  # the type of positions

    @classmethod
    def of(cls, n: int, memory: Residents, most: int = 0) -> _Conversion:
        """Return that of *n* elements; positions are of a type that holds *most*, too."""
        target = Target("cuda", device_properties(memory.place.device).target)
        return cls(memory, target, n, index_type(n, most).name)

    def rows(self, who: str, vector: DeviceArray, count: int) -> DeviceTensor:
        """Return the result of ``rows_of``."""
        keys, n = self._new(self.n, "int64"), self.n
        whole = verdict.converted(str(vector.dtype), "int64", target=self.target)
        if not self._passes(whole, self._resident(vector), keys, n, 0, count - 1):
            in_range(who, to_host(vector, self.memory.place.stream), 0, count - 1)
        keys, ids = self._order(keys, 0, bits_of(count))
        begins, ones = self._new(count + 1, self.number), dtype_of("int32")
        make = digits.pointers(self.number, target=self.target)
        self._start(make, keys, begins, n, count, 0)
        data = self.memory.output((n,), ones, 1).array
        memory.synchronize(self.memory.place.stream, data.device)  # before calls on other streams
        level = Level("compressed", begins.array, ids.array)  # type: ignore[arg-type]
        layout = Format(("dense", "compressed"), idtype=dtype_of(self.number))
        return DeviceTensor((count, n), (None, level), data, layout)

    def run(self, matrix: DeviceSparse, layout: Layout, duplicates: Duplicates) -> Any:
        """Return *matrix* in the format *layout*."""
        rows, columns = self._coordinates(matrix)
        by_columns = layout == "csc"
        extents = matrix.shape[::-1] if by_columns else matrix.shape
        bits, total = bits_of(extents[1]), sum(map(bits_of, extents))
        if total > BITS:
            raise ArgumentError(
                f"argument x: has the shape {matrix.shape}, whose coordinates need {total} bits",
                hint=f"on a GPU, there are {BITS} for both: convert a copy on the host",
            )
        axes = (columns, rows) if by_columns else (rows, columns)
        keys = self._keys(axes, extents, bits)
        values = self._resident(matrix.data)
        if not self._passes(digits.rising(target=self.target), keys, self.n):
            listed = matrix.format == ("csr" if by_columns else "csc")
            keys, values = self._sorted(keys, values, bits if listed else 0, total)
            keys, values = self._without_repeated(keys, values, bits, duplicates, by_columns)
        return self._result(matrix, layout, keys, values, extents, bits)

    # -- the elements --------------------------------------------------------------------------

    def _coordinates(self, matrix: DeviceSparse) -> tuple[Resident, Resident]:
        """Return the rows and the columns of the elements."""
        for array in matrix.indices:
            if array.size != self.n:
                raise ArgumentError(f"argument x: has {self.n} values and {array.size} indices")
        if matrix.indptr is None:
            rows, columns = matrix.indices
            return self._resident(rows), self._resident(columns)
        by_columns = matrix.format == "csc"
        count = matrix.shape[by_columns]
        pointers, minors = self._resident(matrix.indptr), self._resident(matrix.indices[0])
        verdict = Verdict(self.memory, self.target)
        check, arrays = Pointers("x.indptr", count, 0, self.n, self.n), {"x.indptr": pointers}
        if verdict.takes(check, arrays):
            verdict.ask(check, arrays, str)
            verdict.read()
        else:
            check.run({"x.indptr": np.asarray(pointers)}, str)
        kind = str(minors.array.dtype)
        majors = self._new(self.n, kind)
        self._start(
            digits.majors(str(pointers.array.dtype), kind, target=self.target),
            *(pointers, majors, self.n, count),
        )
        return (minors, majors) if by_columns else (majors, minors)

    def _keys(
        self, axes: tuple[Resident, Resident], extents: tuple[int, ...], bits: int
    ) -> Resident:
        """Return the keys of the elements; raises ArgumentError for a coordinate outside."""
        keys = self._new(self.n, "int64")
        make = digits.keys(str(axes[0].array.dtype), target=self.target)
        if not self._passes(make, *axes, keys, self.n, *extents, bits):
            refuse_outside([np.asarray(axis) for axis in axes], extents)
        return keys

    # -- in order ------------------------------------------------------------------------------

    def _sorted(
        self, keys: Resident, values: Resident, low: int, high: int
    ) -> tuple[Resident, Resident]:
        """Return *keys* in the order of their bits from *low* to *high*, and *values* likewise."""
        keys, ids = self._order(keys, low, high)
        return keys, self._taken(values, ids)

    def _order(self, keys: Resident, low: int, high: int) -> tuple[Resident, Resident]:
        """Return *keys* in the order of their bits from *low* to *high*, and where they were."""
        n, chunks = self.n, -(-self.n // CHUNK)
        counts = self._new(chunks * VALUES, self.number)
        spare = self._new(n, "int64")
        ids, ids_to = (self._new(n, self.number) for _ in range(2))
        for shift in range(low, high, DIGIT):
            count = digits.count(self.number, target=self.target)
            self._start(count, keys, counts, n, chunks, shift)
            self._scan(counts)
            move = digits.move(self.number, shift == low, target=self.target)
            self._start(move, keys, ids, counts, spare, ids_to, n, chunks, shift)
            keys, spare, ids, ids_to = spare, keys, ids_to, ids
        return keys, ids

    def _taken(self, values: Resident, ids: Resident) -> Resident:
        """Return the *values* with the numbers *ids*."""
        moved = self._new(ids.size, str(values.array.dtype))
        take = digits.taken(self.number, str(values.array.dtype), target=self.target)
        self._start(take, values, ids, moved, ids.size)
        return moved

    def _scan(self, counts: Resident) -> None:
        """Replace *counts* by what comes before each of them."""
        n = counts.size
        chunks = -(-n // CHUNK)
        sums = self._new(chunks, self.number)
        whole = chunks <= 1
        if not whole:
            self._start(digits.totals(self.number, target=self.target), counts, sums, n, chunks)
            self._scan(sums)
        run = digits.running(self.number, whole, target=self.target)
        self._start(run, counts, sums, n, chunks)

    def _without_repeated(
        self,
        keys: Resident,
        values: Resident,
        bits: int,
        duplicates: Duplicates,
        by_columns: bool,  # noqa: FBT001
    ) -> tuple[Resident, Resident]:
        """Return sorted elements with the values of repeated ones added up in order."""
        if duplicates == "keep":
            return keys, values
        place = self._new(self.n + 1, self.number)
        self._start(digits.firsts(self.number, target=self.target), keys, place, self.n)
        self._scan(place)
        count = int(place.flat[-1])
        if count == self.n:
            return keys, values
        if duplicates == "error":
            host = np.asarray(keys)
            twice = int(host[1:][host[1:] == host[:-1]][0])
            at = twice >> bits, twice & (1 << bits) - 1
            refuse_repeated(at[::-1] if by_columns else at)
        item: DType = values.array.dtype
        wide = {16: "float32"}.get(item.bits, str(item)) if item.is_float else str(item)
        either = item.kind == "bool"
        kinds = str(item), "int32" if either else wide, either
        add = digits.summed(self.number, *kinds, target=self.target)
        kept, sums = self._new(count, "int64"), self._new(count, str(item))
        self._start(add, keys, values, place, kept, sums, self.n, count)
        return kept, sums

    # -- the result ----------------------------------------------------------------------------

    def _result(
        self,
        matrix: DeviceSparse,
        layout: Layout,
        keys: Resident,
        values: Resident,
        extents: tuple[int, ...],
        bits: int,
    ) -> Any:
        if layout == "ell":
            return self._by_slots(matrix.shape, keys, values, bits)
        n = values.size
        torch = matrix.data.library == "torch"
        wide = max(n, *extents) > INT32 or (torch and layout == "coo")
        kind = "int64" if wide else "int32"
        minors = self._new(n, kind)
        self._start(digits.parts(kind, False, target=self.target), keys, minors, n, bits)
        if layout == "coo":
            majors = self._new(n, kind)
            self._start(digits.parts(kind, True, target=self.target), keys, majors, n, bits)
        else:
            majors = self._new(extents[0] + 1, kind)
            self._start(
                digits.pointers(kind, target=self.target), keys, majors, n, extents[0], bits
            )
        return sparse_from(layout, majors.array, minors.array, values.array, matrix.shape)

    def _by_slots(
        self, shape: tuple[int, ...], keys: Resident, values: Resident, bits: int
    ) -> DeviceTensor:
        """Return sorted elements as a matrix whose rows have equally many places."""
        (rows, columns), n = shape, values.size
        kind = index_type(columns, n).name
        pointers = self._new(rows + 1, kind)
        make = digits.pointers(kind, target=self.target)
        self._start(make, keys, pointers, n, rows, bits)
        width = int(np.diff(np.asarray(pointers)).max(initial=0))
        count = checked_count(rows * width, n)
        indices, data = self._new(count, kind), self._new(count, str(values.array.dtype))
        put = digits.slots(kind, str(values.array.dtype), target=self.target)
        self._start(put, *(keys, values, pointers, indices, data, n, rows, width, count, bits))
        item = indices.array.dtype.itemsize
        table = replace(indices.array, shape=(rows, width), strides=(width * item, item))
        level = Level("fixed", indices=table)  # type: ignore[arg-type]
        layout = Format(("dense", "fixed"), idtype=dtype_of(kind))
        padding = (1,) if count > n else ()
        return DeviceTensor(shape, (None, level), data.array, layout, padding)

    def _resident(self, array: DeviceArray) -> Resident:
        """Return *array*, or a copy if it is a part of another one that kernels cannot take."""
        return self.memory.resident(self.memory.clone(array) if array.pointer % ALIGN else array)

    def _new(self, size: int, kind: str) -> Resident:
        return self.memory.output((size,), dtype_of(kind), None)

    def _start(self, program: Program, *args: Any) -> None:
        program.start(args, self.memory)

    def _passes(self, program: Program, *args: Any) -> bool:
        """Run *program*, which may fail, and wait for it; return whether it has not failed."""
        word = self.memory.output((1,), dtype_of("int32"), -1)
        program.start(args, self.memory, word.array.pointer)
        return int(np.asarray(word)[0]) == -1
