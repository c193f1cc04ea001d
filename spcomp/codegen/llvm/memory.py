"""Flat IR to LLVM IR, memory: loads, stores, gathers, scatters, masks, searches, prefetch."""

from __future__ import annotations

from dataclasses import dataclass

from spcomp.codegen.llvm.code import Code
from spcomp.codegen.llvm.convert import convert, decode, encode
from spcomp.codegen.llvm.ops import memory, register, suffix, vector, zero
from spcomp.dtypes import DType, int64, promote
from spcomp.ir.axis import HASH
from spcomp.ir.expr import SearchKind

ZERO = ".nothing"  # a zero that masked lanes read


@dataclass(frozen=True, slots=True)
class Access:
    """Elements of *dtype* (scalar or vector) at *pointer*, under *mask* (None: all lanes).

    *offset* is one i64 (*contiguous*: the first of adjacent elements), else an operand of the
    type *offsets*: one offset per lane. *multiple*: elements that divide the offset.
    """

    pointer: str
    offset: str
    dtype: DType
    mask: str | None
    offsets: str = "i64"
    multiple: int = 1

    @property
    def contiguous(self) -> bool:
        """Whether the elements are adjacent."""
        return self.offsets == "i64"

    @property
    def align(self) -> int:
        """Bytes that divide every address."""
        return self.dtype.itemsize * self.multiple

    def address(self, code: Code, *, known_inside: bool = True) -> str:
        """Return the pointer, or the vector of pointers, to the elements."""
        kind = memory(self.dtype.element)
        inbounds = "inbounds " if known_inside else ""
        return code.value(
            f"getelementptr {inbounds}{kind}, ptr {self.pointer}, {self.offsets} {self.offset}"
        )


def read(code: Code, at: Access) -> str:
    """Return the elements; masked lanes give zero."""
    dtype, kind = at.dtype, memory(at.dtype)
    if at.mask is None and at.contiguous:
        raw = code.value(f"load {kind}, ptr {at.address(code)}, align {at.align}")
        return decode(code, raw, dtype)
    if dtype.lanes == 1:
        plain = Access(at.pointer, at.offset, dtype, None)
        return code.choose(at.mask or "true", dtype, lambda: read(code, plain), lambda: zero(dtype))
    if not code.unit.dialect.has_masks:
        return _each_lane(code, at)
    if not at.contiguous and dtype.lanes <= code.unit.knobs.single_lanes:
        return decode(code, _load_lanes(code, at), dtype)
    address, (pointers, name) = at.address(code), _pointers(at, "load", "gather")
    mask = at.mask or "splat (i1 true)"
    truth = vector("i1", dtype.lanes)
    intrinsic = code.unit.declare(
        f"llvm.masked.{name}.{suffix(kind)}.{suffix(pointers)}",
        kind,
        f"{pointers}, {truth}, {kind}",
    )
    raw = code.value(
        f"call {kind} {intrinsic}({pointers} align {at.align} {address}, {truth} {mask},"
        f" {kind} zeroinitializer)"
    )
    return decode(code, raw, dtype)


def _each_lane(code: Code, at: Access) -> str:
    """Return the elements of a vector, each read under its own condition."""
    kind, scalar, result = register(at.dtype), register(at.dtype.element), "poison"
    for lane in range(at.dtype.lanes):
        value = read(code, _lane(code, at, lane))
        result = code.value(f"insertelement {kind} {result}, {scalar} {value}, i64 {lane}")
    return result


def _lane(code: Code, at: Access, lane: int) -> Access:
    """Return the access of one lane of *at*."""
    if at.contiguous:
        offset = code.value(f"add i64 {at.offset}, {lane}")
    else:
        scalar = at.offsets[1:-1].partition(" x ")[2]
        offset = code.value(f"extractelement {at.offsets} {at.offset}, i64 {lane}")
        if scalar != "i64":
            offset = code.value(f"sext {scalar} {offset} to i64")
    mask = at.mask
    if mask is not None:
        mask = code.value(f"extractelement {vector('i1', at.dtype.lanes)} {mask}, i64 {lane}")
    return Access(at.pointer, offset, at.dtype.element, mask)


def _load_lanes(code: Code, at: Access) -> str:
    """Load the elements of a vector one by one; a masked lane reads a constant zero."""
    kind, element, result = memory(at.dtype), memory(at.dtype.element), "poison"
    safe = None if at.mask is None else _pointers_or_zero(code, at)
    for lane in range(at.dtype.lanes):
        if safe is not None:
            pointers = vector("ptr", at.dtype.lanes)
            place = code.value(f"extractelement {pointers} {safe}, i64 {lane}")
        else:
            offset = code.value(f"extractelement {at.offsets} {at.offset}, i64 {lane}")
            place = Access(at.pointer, offset, at.dtype.element, None).address(code)
        value = code.value(f"load {element}, ptr {place}, align {at.align}")
        result = code.value(f"insertelement {kind} {result}, {element} {value}, i64 {lane}")
    return result


def _pointers_or_zero(code: Code, at: Access) -> str:
    """Return the pointers to the elements; those of masked lanes point to a zero."""
    code.unit.declarations.setdefault(ZERO, f"@{ZERO} = internal constant i64 0")
    truth, pointers = vector("i1", at.dtype.lanes), vector("ptr", at.dtype.lanes)
    places = at.address(code, known_inside=False)
    zeros = f"splat (ptr @{ZERO})"
    return code.value(f"select {truth} {at.mask}, {pointers} {places}, {pointers} {zeros}")


def write(code: Code, at: Access, value: str) -> None:
    """Store *value*, of the register type of the access, where the mask is true."""
    dtype, kind = at.dtype, memory(at.dtype)
    if at.mask is None and at.contiguous:
        raw = encode(code, value, dtype)
        code.do(f"store {kind} {raw}, ptr {at.address(code)}, align {at.align}")
        return
    if dtype.lanes == 1:
        plain = Access(at.pointer, at.offset, dtype, None)
        code.when(at.mask or "true", lambda: write(code, plain, value))
        return
    if not code.unit.dialect.has_masks:
        kind = register(dtype)
        for lane in range(dtype.lanes):
            part = code.value(f"extractelement {kind} {value}, i64 {lane}")
            write(code, _lane(code, at, lane), part)
        return
    raw, address = encode(code, value, dtype), at.address(code)
    pointers, name = _pointers(at, "store", "scatter")
    truth, mask = vector("i1", dtype.lanes), at.mask or "splat (i1 true)"
    function = code.unit.declare(
        f"llvm.masked.{name}.{suffix(kind)}.{suffix(pointers)}",
        "void",
        f"{kind}, {pointers}, {truth}",
    )
    code.do(
        f"call void {function}({kind} {raw}, {pointers} align {at.align} {address}, {truth} {mask})"
    )


def _pointers(at: Access, contiguous: str, scattered: str) -> tuple[str, str]:
    if at.contiguous:
        return "ptr", contiguous
    return vector("ptr", at.dtype.lanes), scattered


def prefetch(code: Code, at: Access) -> None:
    """Ask for every cache line of the elements; the addresses need not be inside the buffer."""
    code.unit.declare("llvm.prefetch.p0", "void", "ptr, i32, i32, i32")
    address = at.address(code, known_inside=False)
    if at.contiguous:
        size = at.dtype.itemsize * at.dtype.lanes
        steps = range(0, size, code.unit.knobs.line_bytes)
        targets = [_byte(code, address, step) for step in steps]
    else:
        kind = vector("ptr", at.dtype.lanes)
        targets = [
            code.value(f"extractelement {kind} {address}, i64 {lane}")
            for lane in range(at.dtype.lanes)
        ]
    for target in targets:
        code.do(f"call void @llvm.prefetch.p0(ptr {target}, i32 0, i32 3, i32 1)")


def _byte(code: Code, address: str, step: int) -> str:
    return code.value(f"getelementptr i8, ptr {address}, i64 {step}") if step else address


@dataclass(frozen=True, slots=True)
class SearchKey:
    """What a search looks for: *key* of *common* dtype among the elements at *pointer*.

    *slope*: added to an element once per position (int64).
    """

    pointer: str
    element: DType
    key: str
    common: DType
    slope: int = 0

    def read(self, code: Code, position: str, lanes: int = 1) -> str:
        """Return *lanes* elements from *position* on."""
        dtype = self.element.with_lanes(lanes)
        return read(code, Access(self.pointer, position, dtype, None))

    def compare(self, code: Code, op: str, position: str, lanes: int = 1) -> str:
        """Return the i1 ``element[position] op key``, for *lanes* positions from this one on."""
        element, dtype = self.element.with_lanes(lanes), self.common.with_lanes(lanes)
        value = convert(code, self.read(code, position, lanes), element, dtype)
        if self.slope:
            rise = code.value(f"mul i64 {position}, {self.slope}")
            value = code.value(f"add i64 {value}, {rise}")
        key = code.splat(self.key, self.common, lanes) if lanes > 1 else self.key
        return code.arithmetic(op, dtype, value, key)


def search_key(
    code: Code, pointer: str, element: DType, key: tuple[str, DType], slope: int
) -> SearchKey:
    """Return *key*, an operand and its dtype, ready to be compared with values of *element*."""
    common = promote(element, key[1])
    if common.is_float and element.is_integer and key[1].is_integer:
        common = int64  # no type holds both
    return SearchKey(pointer, element, convert(code, *key, common), common, slope)


def search(
    code: Code, kind: SearchKind, key: SearchKey, begin: str, end: str, *, narrow: bool = False
) -> str:
    """Return the position that ``ir.expr.Search`` defines for *kind*.

    *narrow*: *begin* and *end* are from 0 to below 2 ** 31, for a binary search in i32.
    """
    if kind == "linear":
        return _linear_search(code, key, begin, end, "==")
    if kind == "run":
        return _run_end(code, key, begin, end)
    if kind == "probe":
        return _probe(code, key, begin, end)
    if kind == "gallop":
        begin, end = _gallop(code, key, begin, end)
    op = "<=" if kind == "upper" else "<"
    if narrow and kind != "gallop":
        first, last = (code.value(f"trunc i64 {position} to i32") for position in (begin, end))
        found = _binary_search(code, op, key, first, last, "i32")
        return code.value(f"zext i32 {found} to i64")
    return _binary_search(code, op, key, begin, end)


def _begin_loop(
    code: Code, head: str, back: str, *firsts: str, integer: str = "i64"
) -> list[tuple[str, str]]:
    """Begin a loop at the block *head*, to which the block *back* jumps back.

    Return for each of *firsts*, an *integer*, its name in this trip and its name in the next.
    """
    before = code.block
    code.jump(head)
    code.start(head)
    states = [(code.name(), code.name()) for _ in firsts]
    for first, (now, then) in zip(firsts, states, strict=True):
        code.do(f"{now} = phi {integer} [ {first}, %{before} ], [ {then}, %{back} ]")
    return states


def _binary_search(
    code: Code, op: str, key: SearchKey, begin: str, end: str, integer: str = "i64"
) -> str:
    """Return the position, an *integer*, behind the elements that are *op* the key."""
    head, body, join = (code.label(x) for x in ("head", "probe", "found"))
    states = _begin_loop(code, head, body, begin, end, integer=integer)
    (low, new_low), (high, new_high) = states
    code.branch(code.value(f"icmp slt {integer} {low}, {high}"), body, join)
    code.start(body)
    middle = code.value(f"lshr {integer} {code.value(f'add {integer} {low}, {high}')}, 1")
    wide = middle if integer == "i64" else code.value(f"zext {integer} {middle} to i64")
    right = key.compare(code, op, wide)
    after = code.value(f"add {integer} {middle}, 1")
    code.do(f"{new_low} = select i1 {right}, {integer} {after}, {integer} {low}")
    code.do(f"{new_high} = select i1 {right}, {integer} {high}, {integer} {middle}")
    code.jump(head)
    code.start(join)
    return low


def _gallop(code: Code, key: SearchKey, begin: str, end: str) -> tuple[str, str]:
    """Return two positions between which the elements below the key end: steps that double."""
    head, body, step, join = (code.label(x) for x in ("head", "probe", "next", "around"))
    states = _begin_loop(code, head, step, begin, begin, "1")
    (low, after), (at, further), (width, wider) = states
    code.branch(code.value(f"icmp slt i64 {at}, {end}"), body, join)
    code.start(body)
    code.branch(key.compare(code, "<", at), step, join)
    code.start(step)
    code.do(f"{after} = add nsw i64 {at}, 1")
    code.do(f"{further} = add nsw i64 {at}, {width}")
    code.do(f"{wider} = shl i64 {width}, 1")
    code.jump(head)
    code.start(join)
    return low, code.value(f"phi i64 [ {end}, %{head} ], [ {at}, %{body} ]")


def _linear_search(code: Code, key: SearchKey, begin: str, end: str, op: str) -> str:
    head, body, step, join = (code.label(x) for x in ("head", "probe", "next", "found"))
    ((at, following),) = _begin_loop(code, head, step, begin)
    code.branch(code.value(f"icmp slt i64 {at}, {end}"), body, join)
    code.start(body)
    code.branch(key.compare(code, op, at), join, step)
    code.start(step)
    code.do(f"{following} = add nsw i64 {at}, 1")
    code.jump(head)
    code.start(join)
    return at


def _run_end(code: Code, key: SearchKey, begin: str, end: str) -> str:
    """Compare several elements at a time: runs are mostly short, their length unpredictable."""
    size = code.unit.knobs.run_lanes
    head, body, hit, step, tail, join = (
        code.label(x) for x in ("head", "probes", "differs", "next", "rest", "found")
    )
    ((at, following),) = _begin_loop(code, head, step, begin)
    room = code.value(f"add nsw i64 {at}, {size}")
    code.branch(code.value(f"icmp sle i64 {room}, {end}"), body, tail)
    code.start(body)
    differs = code.value(f"bitcast <{size} x i1> {key.compare(code, '!=', at, size)} to i{size}")
    code.branch(code.value(f"icmp ne i{size} {differs}, 0"), hit, step)
    code.start(hit)
    intrinsic = code.unit.declare(f"llvm.cttz.i{size}", f"i{size}", f"i{size}, i1")
    count = code.value(f"call i{size} {intrinsic}(i{size} {differs}, i1 true)")
    inside = code.value(f"add nsw i64 {at}, {code.value(f'zext i{size} {count} to i64')}")
    code.jump(join)
    code.start(step)
    code.do(f"{following} = add nsw i64 {at}, {size}")
    code.jump(head)
    code.start(tail)
    last = _linear_search(code, key, at, end, "!=")
    behind = code.block
    code.jump(join)
    code.start(join)
    return code.value(f"phi i64 [ {inside}, %{hit} ], [ {last}, %{behind} ]")


def _probe(code: Code, key: SearchKey, begin: str, end: str) -> str:
    """Look at each slot at most once, and within bounds for any number of slots."""
    head, body, occupied, step, join = (
        code.label(x) for x in ("head", "probe", "used", "next", "found")
    )
    slots = code.value(f"sub i64 {end}, {begin}")
    last = code.value(f"sub i64 {slots}, 1")
    first = code.value(f"and i64 {_home(code, key, slots)}, {last}")
    (slot, after), (remaining, fewer) = _begin_loop(code, head, step, first, slots)
    code.branch(code.value(f"icmp sgt i64 {remaining}, 0"), body, join)
    code.start(body)
    at = code.value(f"add i64 {begin}, {slot}")
    entry = key.read(code, at)
    code.branch(code.value(f"icmp slt {register(key.element)} {entry}, 0"), join, occupied)
    code.start(occupied)
    code.branch(key.compare(code, "==", at), join, step)
    code.start(step)
    code.do(f"{after} = and i64 {code.value(f'add i64 {slot}, 1')}, {last}")
    code.do(f"{fewer} = sub i64 {remaining}, 1")
    code.jump(head)
    code.start(join)
    return code.value(f"phi i64 [ {end}, %{head} ], [ {end}, %{body} ], [ {at}, %{occupied} ]")


def _home(code: Code, key: SearchKey, slots: str) -> str:
    """Return ``ir.axis.home`` of the key, where *slots* is a power of two."""
    intrinsic = code.unit.declare("llvm.ctlz.i64", "i64", "i64, i1")
    above = code.value(f"call i64 {intrinsic}(i64 {slots}, i1 false)")
    shift = code.value(f"and i64 {code.value(f'add i64 {above}, 1')}, 63")
    integer = convert(code, key.key, key.common, int64)
    product = code.value(f"mul i64 {integer}, {HASH - (1 << 64)}")
    return code.value(f"lshr i64 {product}, {shift}")
