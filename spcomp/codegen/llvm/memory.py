"""Flat IR to LLVM IR, memory: loads, stores, gathers, scatters, masks, searches, prefetch."""

from __future__ import annotations

from dataclasses import dataclass

from spcomp.codegen.llvm.code import Code
from spcomp.codegen.llvm.convert import convert, decode, encode
from spcomp.codegen.llvm.ops import memory, register, suffix, vector, zero
from spcomp.dtypes import DType, int64, promote
from spcomp.ir.axis import HASH
from spcomp.ir.expr import SearchKind

LINE = 64  # bytes of a cache line, which one prefetch asks for
RUN = 8  # elements compared at once to find the end of a run
NOTHING = ".nothing"  # a zero that masked lanes read
FEW = 4  # lanes that are loaded one by one sooner than gathered


@dataclass(frozen=True, slots=True)
class Access:
    """Elements of *dtype* (scalar or vector) at *pointer*, under *mask* (None: all lanes).

    *offset* is one i64 (*contiguous*: the first of adjacent elements), else an operand of the
    type *offsets*: one offset per lane.
    """

    pointer: str
    offset: str
    dtype: DType
    mask: str | None
    offsets: str = "i64"

    @property
    def contiguous(self) -> bool:
        """Whether the elements are adjacent."""
        return self.offsets == "i64"

    @property
    def align(self) -> int:
        """Bytes that divide every address."""
        return self.dtype.itemsize

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
    if not at.contiguous and dtype.lanes <= FEW:
        return decode(code, _elements(code, at), dtype)
    address, (pointers, name) = at.address(code), _pointers(at, "load", "gather")
    mask = at.mask or "splat (i1 true)"
    truth = vector("i1", dtype.lanes)
    called = code.unit.declare(
        f"llvm.masked.{name}.{suffix(kind)}.{suffix(pointers)}",
        kind,
        f"{pointers}, {truth}, {kind}",
    )
    raw = code.value(
        f"call {kind} {called}({pointers} align {at.align} {address}, {truth} {mask},"
        f" {kind} zeroinitializer)"
    )
    return decode(code, raw, dtype)


def _elements(code: Code, at: Access) -> str:
    """Load the elements of a vector one by one; for a masked lane, a zero from elsewhere."""
    kind, one, result = memory(at.dtype), memory(at.dtype.element), "poison"
    masked = None if at.mask is None else _or_nothing(code, at)
    for lane in range(at.dtype.lanes):
        if masked is not None:
            pointers = vector("ptr", at.dtype.lanes)
            place = code.value(f"extractelement {pointers} {masked}, i64 {lane}")
        else:
            offset = code.value(f"extractelement {at.offsets} {at.offset}, i64 {lane}")
            place = Access(at.pointer, offset, at.dtype.element, None).address(code)
        value = code.value(f"load {one}, ptr {place}, align {at.align}")
        result = code.value(f"insertelement {kind} {result}, {one} {value}, i64 {lane}")
    return result


def _or_nothing(code: Code, at: Access) -> str:
    """Return the pointers to the elements, in masked lanes to a zero."""
    code.unit.declarations.setdefault(NOTHING, f"@{NOTHING} = internal constant i64 0")
    truth, pointers = vector("i1", at.dtype.lanes), vector("ptr", at.dtype.lanes)
    places = at.address(code, known_inside=False)
    zeros = f"splat (ptr @{NOTHING})"
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
    raw, address = encode(code, value, dtype), at.address(code)
    pointers, name = _pointers(at, "store", "scatter")
    truth, mask = vector("i1", dtype.lanes), at.mask or "splat (i1 true)"
    called = code.unit.declare(
        f"llvm.masked.{name}.{suffix(kind)}.{suffix(pointers)}",
        "void",
        f"{kind}, {pointers}, {truth}",
    )
    code.do(
        f"call void {called}({kind} {raw}, {pointers} align {at.align} {address}, {truth} {mask})"
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
        steps = range(0, size, LINE)
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
class Sought:
    """What a search looks for: *key* of *common* dtype among the elements at *pointer*.

    *slope*: how much is added to an element per position (of int64).
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
        element, common = self.element.with_lanes(lanes), self.common.with_lanes(lanes)
        value = convert(code, self.read(code, position, lanes), element, common)
        if self.slope:
            rise = code.value(f"mul i64 {position}, {self.slope}")
            value = code.value(f"add i64 {value}, {rise}")
        key = code.splat(self.key, self.common, lanes) if lanes > 1 else self.key
        return code.arithmetic(op, common, value, key)


def sought(code: Code, pointer: str, element: DType, key: tuple[str, DType], slope: int) -> Sought:
    """Return *key*, an operand and its dtype, ready to be compared with values of *element*."""
    common = promote(element, key[1])
    if common.is_float and element.is_integer and key[1].is_integer:
        common = int64  # no type holds both
    return Sought(pointer, element, convert(code, *key, common), common, slope)


def search(code: Code, kind: SearchKind, what: Sought, begin: str, end: str) -> str:
    """Return the position that ``ir.expr.Search`` defines for *kind*."""
    if kind == "linear":
        return _linear_search(code, what, begin, end, "==")
    if kind == "run":
        return _run_end(code, what, begin, end)
    if kind == "probe":
        return _probe(code, what, begin, end)
    if kind == "gallop":
        begin, end = _around(code, what, begin, end)
    return _halved(code, "<=" if kind == "upper" else "<", what, begin, end)


def _looped(code: Code, head: str, back: str, *firsts: str) -> list[tuple[str, str]]:
    """Begin at *head* the loop that the block *back* goes back to.

    For each of *firsts*, an i64, its name in the loop, and the name of what it is next.
    """
    before = code.block
    code.jump(head)
    code.start(head)
    states = [(code.name(), code.name()) for _ in firsts]
    for first, (now, then) in zip(firsts, states, strict=True):
        code.do(f"{now} = phi i64 [ {first}, %{before} ], [ {then}, %{back} ]")
    return states


def _halved(code: Code, op: str, what: Sought, begin: str, end: str) -> str:
    """Return where the elements end that are *op* the key."""
    head, body, join = (code.label(x) for x in ("head", "probe", "found"))
    (low, new_low), (high, new_high) = _looped(code, head, body, begin, end)
    code.branch(code.value(f"icmp slt i64 {low}, {high}"), body, join)
    code.start(body)
    middle = code.value(f"lshr i64 {code.value(f'add i64 {low}, {high}')}, 1")
    right = what.compare(code, op, middle)
    after = code.value(f"add i64 {middle}, 1")
    code.do(f"{new_low} = select i1 {right}, i64 {after}, i64 {low}")
    code.do(f"{new_high} = select i1 {right}, i64 {high}, i64 {middle}")
    code.jump(head)
    code.start(join)
    return low


def _around(code: Code, what: Sought, begin: str, end: str) -> tuple[str, str]:
    """Return between which positions the elements below the key end, by steps that double."""
    head, body, step, join = (code.label(x) for x in ("head", "probe", "next", "around"))
    states = _looped(code, head, step, begin, begin, "1")
    (low, after), (at, further), (width, wider) = states
    code.branch(code.value(f"icmp slt i64 {at}, {end}"), body, join)
    code.start(body)
    code.branch(what.compare(code, "<", at), step, join)
    code.start(step)
    code.do(f"{after} = add nsw i64 {at}, 1")
    code.do(f"{further} = add nsw i64 {at}, {width}")
    code.do(f"{wider} = shl i64 {width}, 1")
    code.jump(head)
    code.start(join)
    return low, code.value(f"phi i64 [ {end}, %{head} ], [ {at}, %{body} ]")


def _linear_search(code: Code, what: Sought, begin: str, end: str, op: str) -> str:
    head, body, step, join = (code.label(x) for x in ("head", "probe", "next", "found"))
    ((at, following),) = _looped(code, head, step, begin)
    code.branch(code.value(f"icmp slt i64 {at}, {end}"), body, join)
    code.start(body)
    code.branch(what.compare(code, op, at), join, step)
    code.start(step)
    code.do(f"{following} = add nsw i64 {at}, 1")
    code.jump(head)
    code.start(join)
    return at


def _run_end(code: Code, what: Sought, begin: str, end: str) -> str:
    """Compare several elements at a time: how many are equal is more often few than foreseeable."""
    head, body, hit, step, rest, join = (
        code.label(x) for x in ("head", "probes", "differs", "next", "rest", "found")
    )
    ((at, following),) = _looped(code, head, step, begin)
    room = code.value(f"add nsw i64 {at}, {RUN}")
    code.branch(code.value(f"icmp sle i64 {room}, {end}"), body, rest)
    code.start(body)
    found = code.value(f"bitcast <{RUN} x i1> {what.compare(code, '!=', at, RUN)} to i{RUN}")
    code.branch(code.value(f"icmp ne i{RUN} {found}, 0"), hit, step)
    code.start(hit)
    called = code.unit.declare(f"llvm.cttz.i{RUN}", f"i{RUN}", f"i{RUN}, i1")
    count = code.value(f"call i{RUN} {called}(i{RUN} {found}, i1 true)")
    inside = code.value(f"add nsw i64 {at}, {code.value(f'zext i{RUN} {count} to i64')}")
    code.jump(join)
    code.start(step)
    code.do(f"{following} = add nsw i64 {at}, {RUN}")
    code.jump(head)
    code.start(rest)
    last = _linear_search(code, what, at, end, "!=")
    behind = code.block
    code.jump(join)
    code.start(join)
    return code.value(f"phi i64 [ {inside}, %{hit} ], [ {last}, %{behind} ]")


def _probe(code: Code, what: Sought, begin: str, end: str) -> str:
    """Look at each slot once at most, within bounds whatever the number of slots is."""
    head, body, used, step, join = (
        code.label(x) for x in ("head", "probe", "used", "next", "found")
    )
    slots = code.value(f"sub i64 {end}, {begin}")
    last = code.value(f"sub i64 {slots}, 1")
    first = code.value(f"and i64 {_home(code, what, slots)}, {last}")
    (slot, after), (left, fewer) = _looped(code, head, step, first, slots)
    code.branch(code.value(f"icmp sgt i64 {left}, 0"), body, join)
    code.start(body)
    at = code.value(f"add i64 {begin}, {slot}")
    entry = what.read(code, at)
    code.branch(code.value(f"icmp slt {register(what.element)} {entry}, 0"), join, used)
    code.start(used)
    code.branch(what.compare(code, "==", at), join, step)
    code.start(step)
    code.do(f"{after} = and i64 {code.value(f'add i64 {slot}, 1')}, {last}")
    code.do(f"{fewer} = sub i64 {left}, 1")
    code.jump(head)
    code.start(join)
    return code.value(f"phi i64 [ {end}, %{head} ], [ {end}, %{body} ], [ {at}, %{used} ]")


def _home(code: Code, what: Sought, slots: str) -> str:
    """Return ``ir.axis.home`` of the key, where *slots* is a power of two."""
    called = code.unit.declare("llvm.ctlz.i64", "i64", "i64, i1")
    above = code.value(f"call i64 {called}(i64 {slots}, i1 false)")
    shift = code.value(f"and i64 {code.value(f'add i64 {above}, 1')}, 63")
    key = convert(code, what.key, what.common, int64)
    mixed = code.value(f"mul i64 {key}, {HASH - (1 << 64)}")
    return code.value(f"lshr i64 {mixed}, {shift}")
