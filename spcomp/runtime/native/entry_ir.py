"""Beside the kernels: LLVM IR of the call entry, which repeats a call that was recorded before.

``spcomp_entry(self, named)`` is the C function of a Python builtin (METH_O). *self* is a tuple
whose first item is a bytes object, the program of a call: a header of ``HEADER`` words and
instructions of ``STEP`` words, each an opcode and up to seven operands. It fetches the arguments
from the dict *named*, checks that each is of the kind that the program was written for, checks
index arrays, and calls packed kernel functions without the GIL. A guard that does not hold ends
the call with NotImplemented and without effect; a kernel that fails ends it with its status.

It reads Python's objects through the stable ABI, and numpy's arrays at the offsets of the public
struct ``PyArrayObject_fields`` (the same in numpy 1 and 2, and part of every extension module
built against numpy): three loads per array, where the buffer protocol costs a call and an
allocation. ``runtime.replay.entry`` does not use this code if the offsets are other ones.
"""

from __future__ import annotations

import re
from enum import IntEnum

from spcomp.runtime.native.checks_ir import WIDTHS

ENTRY = "spcomp_entry"
POLL = "spcomp_poll"  # i32 (): whether a signal's handler has raised an error, which is then set
CALLS = {n: f"spcomp_call{n}" for n in (1, 6, 7)}  # i32 (ptr function, n of i64), no GIL held
LIMIT = 64  # objects, and slots, that a program may use
STATUS = 1 << 32  # times the number of a function is added to the status that is returned
STEP = 8  # words per instruction
HEADER = 6  # words: counts of argument names and of objects; addresses of NotImplemented, None,
# AttributeError, ndarray
DATA, NDIM, SHAPE, DESCR, FLAGS = 16, 24, 32, 56, 64  # offsets in PyArrayObject_fields
TYPE = 8  # offset in PyObject


class Op(IntEnum):
    """What an instruction does; *k*, *a*, *b* are numbers of objects."""

    TAKE = 0  # k, name: object k is the argument called name
    ATTR = 1  # k, a, name: object k is a.name
    CONST = 2  # k, object
    APPLY = 3  # k, callable, count, numbers (their word): object k is what it returns for these
    TYPED = 4  # k, type: the exact type
    SAME = 5  # k, object: the very object
    LIKE = 6  # k, object: what is equal to it
    ARRAY = 7  # k, dtype, ndim, extents (their word), mask, flags: word k is its address
    ADDRESS = 8  # k: word k is the address of the elements of an array, whatever it is like
    FLOAT = 9  # k, bits: word k is the number
    COPY = 10  # k, slot: word k goes to the slot
    SLOT = 11  # slot, value
    APART = 12  # a, bytes, b, bytes: share no memory
    EQUAL = 13  # a, b, bytes: hold the same bytes
    UNLOCK = 14  # let go of the GIL
    LOCK = 15  # take it again
    POINTERS32 = 16  # k, fibers, first, low, high, longest: see runtime.native.checks_ir
    POINTERS64 = 17
    INDICES32 = 18  # k, count, least, span, order, b (indptr), fibers
    INDICES64 = 19
    ELEMENT32 = 20  # k, position, value: holds this value there
    ELEMENT64 = 21
    CALL = 22  # function, slot of its first parameter, its number
    RETURN = 23  # count, numbers (their word): nothing, one object, or a tuple of several


API = {  # of Python's stable ABI: name -> result and parameters
    "PyTuple_GetItem": "ptr (ptr, i64)",
    "PyTuple_New": "ptr (i64)",
    "PyTuple_SetItem": "i32 (ptr, i64, ptr)",
    "PyBytes_AsString": "ptr (ptr)",
    "PyDict_Size": "i64 (ptr)",
    "PyDict_GetItemWithError": "ptr (ptr, ptr)",
    "PyObject_GetAttr": "ptr (ptr, ptr)",
    "PyObject_CallObject": "ptr (ptr, ptr)",
    "PyObject_RichCompareBool": "i32 (ptr, ptr, i32)",
    "PyLong_FromLongLong": "ptr (i64)",
    "PyFloat_AsDouble": "double (ptr)",
    "PyErr_Occurred": "ptr ()",
    "PyErr_ExceptionMatches": "i32 (ptr)",
    "PyErr_Clear": "void ()",
    "PyErr_CheckSignals": "i32 ()",
    "PyGILState_Ensure": "i32 ()",
    "PyGILState_Release": "void (i32)",
    "PyEval_SaveThread": "ptr ()",
    "PyEval_RestoreThread": "void (ptr)",
    "Py_IncRef": "void (ptr)",
    "Py_DecRef": "void (ptr)",
}


def entry_ir(attributes: str) -> str:
    """Return the entry as LLVM IR, to be linked with ``checks_ir`` of the same *attributes*."""
    lines = []
    for name, kind in API.items():
        result, _, parameters = kind.partition(" ")
        lines.append(f"declare {result} @{name}{parameters}")
    for width in WIDTHS:
        lines.append(f"declare i32 @spcomp_pointers{width}(ptr, i64, i64, i64, i64, i64)")
        lines.append(f"declare i32 @spcomp_indices{width}(ptr, i64, i64, i64, i64, ptr, i64)")
    cases = "\n".join(f"    i64 {op.value}, label %{op.name.lower()}" for op in Op)
    checks = "".join(
        _CHECK.replace("WIDTH", str(width)).replace("INT", f"i{width}") for width in WIDTHS
    )
    body = (_ENTRY + _FETCH + _GUARDS + _RUN + checks + _EXIT).replace("CASES", cases)
    body = re.sub(r"trunc i64 (\S+) to i64", r"add i64 \1, 0", body)  # of the same width
    for name, value in _NUMBERS.items():
        body = body.replace(name, str(value))
    calls = "".join(_call_ir(name, count) for count, name in CALLS.items())
    return "\n".join([*lines, body, calls, f"attributes #0 = {{ nounwind {attributes} }}\n"])


def _call_ir(name: str, count: int) -> str:
    operands = ", ".join(f"i64 %a{k}" for k in range(count))
    return _CALL.replace("NAME", name).replace("OPERANDS", operands)


_CALL = """
define i32 @NAME(ptr %function, OPERANDS) #0 {
  %state = call ptr @PyEval_SaveThread()
  %status = call i32 %function(OPERANDS)
  call void @PyEval_RestoreThread(ptr %state)
  ret i32 %status
}
"""

_NUMBERS = {
    "ROOM": 8 * LIMIT,
    "STATUS": STATUS,
    "LIMIT": LIMIT,
    "STEP": STEP,
    "HEADER": HEADER,
    "AT_TYPE": TYPE,
    "AT_DATA": DATA,
    "AT_NDIM": NDIM,
    "AT_SHAPE": SHAPE,
    "AT_DESCR": DESCR,
    "AT_FLAGS": FLAGS,
}

# %objects: new references; %data: a word for each, the address of the elements of an array.
_ENTRY = """
declare i32 @memcmp(ptr, ptr, i64)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)

define internal i64 @word(ptr %words, i64 %n) alwaysinline #0 {
  %at = getelementptr inbounds i64, ptr %words, i64 %n
  %value = load i64, ptr %at, align 8
  ret i64 %value
}

define internal ptr @pointer(ptr %words, i64 %n) alwaysinline #0 {
  %at = getelementptr inbounds ptr, ptr %words, i64 %n
  %value = load ptr, ptr %at, align 8
  ret ptr %value
}

define internal ptr @type(ptr %object) alwaysinline #0 {
  %at = getelementptr inbounds i8, ptr %object, i64 AT_TYPE
  %value = load ptr, ptr %at, align 8
  ret ptr %value
}

define ptr @spcomp_entry(ptr %self, ptr %named) #0 {
entry:
  %objects = alloca [LIMIT x ptr], align 8
  %data = alloca [LIMIT x ptr], align 8
  %slots = alloca [LIMIT x i64], align 8
  %counter = alloca ptr, align 8
  %state = alloca ptr, align 8  ; while the GIL is released
  call void @llvm.memset.p0.i64(ptr %objects, i8 0, i64 ROOM, i1 false)
  store ptr null, ptr %state, align 8
  %code = call ptr @PyTuple_GetItem(ptr %self, i64 0)
  %words = call ptr @PyBytes_AsString(ptr %code)
  %names = call i64 @word(ptr %words, i64 0)
  %used = call i64 @word(ptr %words, i64 1)
  %not.mine = call ptr @pointer(ptr %words, i64 2)
  %first = getelementptr inbounds i64, ptr %words, i64 HEADER
  store ptr %first, ptr %counter, align 8
  %given = call i64 @PyDict_Size(ptr %named)
  %all = icmp eq i64 %given, %names
  br i1 %all, label %next, label %miss
next:
  %pc = load ptr, ptr %counter, align 8
  %following = getelementptr inbounds i64, ptr %pc, i64 STEP
  store ptr %following, ptr %counter, align 8
  %op = call i64 @word(ptr %pc, i64 0)
  %k = call i64 @word(ptr %pc, i64 1)
  %o2 = call i64 @word(ptr %pc, i64 2)
  %o3 = call i64 @word(ptr %pc, i64 3)
  %o4 = call i64 @word(ptr %pc, i64 4)
  %o5 = call i64 @word(ptr %pc, i64 5)
  %o6 = call i64 @word(ptr %pc, i64 6)
  %o7 = call i64 @word(ptr %pc, i64 7)
  %p2 = inttoptr i64 %o2 to ptr
  %object.at = getelementptr inbounds ptr, ptr %objects, i64 %k
  %data.at = getelementptr inbounds ptr, ptr %data, i64 %k
  switch i64 %op, label %miss [
CASES
  ]
"""

_FETCH = """
take:
  %taken = call ptr @PyDict_GetItemWithError(ptr %named, ptr %p2)
  %no.name = icmp eq ptr %taken, null
  br i1 %no.name, label %raised, label %take.own
take.own:
  call void @Py_IncRef(ptr %taken)
  br label %hold
attr:
  %from.at = getelementptr inbounds ptr, ptr %objects, i64 %o2
  %from = load ptr, ptr %from.at, align 8
  %p3 = inttoptr i64 %o3 to ptr
  %attribute = call ptr @PyObject_GetAttr(ptr %from, ptr %p3)
  %no.attribute = icmp eq ptr %attribute, null
  br i1 %no.attribute, label %raised, label %hold
const:
  call void @Py_IncRef(ptr %p2)
  br label %hold
apply:
  %apply.numbers = getelementptr inbounds i64, ptr %words, i64 %o4
  %apply.args = call ptr @gather(ptr %objects, i64 %o3, ptr %apply.numbers)
  %no.args = icmp eq ptr %apply.args, null
  br i1 %no.args, label %raised, label %apply.call
apply.call:
  %applied = call ptr @PyObject_CallObject(ptr %p2, ptr %apply.args)
  call void @Py_DecRef(ptr %apply.args)
  %unapplied = icmp eq ptr %applied, null
  br i1 %unapplied, label %raised, label %hold
hold:
  %held = phi ptr [ %taken, %take.own ], [ %attribute, %attr ], [ %p2, %const ],
    [ %applied, %apply.call ]
  store ptr %held, ptr %object.at, align 8
  br label %next
raised:
  %error = call ptr @PyErr_Occurred()
  %quiet = icmp eq ptr %error, null
  br i1 %quiet, label %miss, label %which
which:
  %lacks = call ptr @pointer(ptr %words, i64 4)
  %matches = call i32 @PyErr_ExceptionMatches(ptr %lacks)
  %missing = icmp ne i32 %matches, 0
  br i1 %missing, label %forget, label %leave
forget:
  call void @PyErr_Clear()
  br label %miss
"""

_GUARDS = """
typed:
  %typed.object = load ptr, ptr %object.at, align 8
  %typed.type = call ptr @type(ptr %typed.object)
  %typed.ok = icmp eq ptr %typed.type, %p2
  br i1 %typed.ok, label %next, label %miss
same:
  %same.object = load ptr, ptr %object.at, align 8
  %same.ok = icmp eq ptr %same.object, %p2
  br i1 %same.ok, label %next, label %miss
like:
  %like.object = load ptr, ptr %object.at, align 8
  %like.truth = call i32 @PyObject_RichCompareBool(ptr %like.object, ptr %p2, i32 2)  ; Py_EQ
  switch i32 %like.truth, label %forget [
    i32 0, label %miss
    i32 1, label %next
  ]
array:
  %array.object = load ptr, ptr %object.at, align 8
  %array.type = call ptr @type(ptr %array.object)
  %ndarray = call ptr @pointer(ptr %words, i64 5)
  %array.exact = icmp eq ptr %array.type, %ndarray
  br i1 %array.exact, label %array.read, label %miss
array.read:
  %descr.at = getelementptr inbounds i8, ptr %array.object, i64 AT_DESCR
  %descr = load ptr, ptr %descr.at, align 8
  %descr.ok = icmp eq ptr %descr, %p2
  %ndim.at = getelementptr inbounds i8, ptr %array.object, i64 AT_NDIM
  %ndim = load i32, ptr %ndim.at, align 4
  %ndim.wide = sext i32 %ndim to i64
  %ndim.ok = icmp eq i64 %ndim.wide, %o3
  %flags.at = getelementptr inbounds i8, ptr %array.object, i64 AT_FLAGS
  %flags = load i32, ptr %flags.at, align 4
  %flags.wide = zext i32 %flags to i64
  %flags.some = and i64 %flags.wide, %o5
  %flags.ok = icmp eq i64 %flags.some, %o6
  %array.ok1 = and i1 %descr.ok, %ndim.ok
  %array.ok2 = and i1 %array.ok1, %flags.ok
  br i1 %array.ok2, label %array.keep, label %miss
array.keep:
  %start.at = getelementptr inbounds i8, ptr %array.object, i64 AT_DATA
  %start = load ptr, ptr %start.at, align 8
  store ptr %start, ptr %data.at, align 8
  %extents.at = getelementptr inbounds i8, ptr %array.object, i64 AT_SHAPE
  %extents = load ptr, ptr %extents.at, align 8
  %expected = getelementptr inbounds i64, ptr %words, i64 %o4
  br label %array.shape
array.shape:
  %dim = phi i64 [ 0, %array.keep ], [ %dim.next, %array.extent ]
  %dims.left = icmp slt i64 %dim, %o3
  br i1 %dims.left, label %array.extent, label %next
array.extent:
  %extent = call i64 @word(ptr %extents, i64 %dim)
  %wanted = call i64 @word(ptr %expected, i64 %dim)
  %extent.ok = icmp eq i64 %extent, %wanted
  %dim.next = add i64 %dim, 1
  br i1 %extent.ok, label %array.shape, label %miss
float:
  %float.object = load ptr, ptr %object.at, align 8
  %number = call double @PyFloat_AsDouble(ptr %float.object)
  %single = fptrunc double %number to float
  %single.bits = bitcast float %single to i32
  %single.word = zext i32 %single.bits to i64
  %double.word = bitcast double %number to i64
  %is.single = icmp eq i64 %o2, 32
  %float.word = select i1 %is.single, i64 %single.word, i64 %double.word
  store i64 %float.word, ptr %data.at, align 8
  br label %next
address:
  %address.object = load ptr, ptr %object.at, align 8
  %address.at = getelementptr inbounds i8, ptr %address.object, i64 AT_DATA
  %address.start = load ptr, ptr %address.at, align 8
  store ptr %address.start, ptr %data.at, align 8
  br label %next
copy:
  %copy.slot = getelementptr inbounds i64, ptr %slots, i64 %o2
  %copied = load i64, ptr %data.at, align 8
  store i64 %copied, ptr %copy.slot, align 8
  br label %next
slot:
  %slot.at = getelementptr inbounds i64, ptr %slots, i64 %k
  store i64 %o2, ptr %slot.at, align 8
  br label %next
apart:
  %apart.a = load i64, ptr %data.at, align 8
  %apart.b = call i64 @word(ptr %data, i64 %o3)
  %apart.a.end = add i64 %apart.a, %o2
  %apart.b.end = add i64 %apart.b, %o4
  %apart.below = icmp ule i64 %apart.a.end, %apart.b
  %apart.above = icmp ule i64 %apart.b.end, %apart.a
  %apart.ok = or i1 %apart.below, %apart.above
  br i1 %apart.ok, label %next, label %miss
equal:
  %equal.a = load ptr, ptr %data.at, align 8
  %equal.b = call ptr @pointer(ptr %data, i64 %o2)
  %equal.one = icmp eq ptr %equal.a, %equal.b
  br i1 %equal.one, label %next, label %equal.bytes
equal.bytes:
  %equal.order = call i32 @memcmp(ptr %equal.a, ptr %equal.b, i64 %o3)
  %equal.ok = icmp eq i32 %equal.order, 0
  br i1 %equal.ok, label %next, label %miss
"""

_RUN = """
unlock:
  %unlocked = call ptr @PyEval_SaveThread()
  store ptr %unlocked, ptr %state, align 8
  br label %next
lock:
  call void @relock(ptr %state)
  br label %next
call:
  %function = inttoptr i64 %k to ptr
  %call.slots = getelementptr inbounds i64, ptr %slots, i64 %o2
  %status = call i32 %function(ptr %call.slots)
  %well = icmp eq i32 %status, 0
  br i1 %well, label %next, label %failed
"""

_CHECK = """
pointersWIDTH:
  %pWIDTH.array = load ptr, ptr %data.at, align 8
  %pWIDTH = call i32 @spcomp_pointersWIDTH(ptr %pWIDTH.array, i64 %o2, i64 %o3, i64 %o4, i64 %o5,
                                           i64 %o6)
  %pWIDTH.ok = icmp ne i32 %pWIDTH, 0
  br i1 %pWIDTH.ok, label %next, label %miss
elementWIDTH:
  %eWIDTH.array = load ptr, ptr %data.at, align 8
  %eWIDTH.at = getelementptr inbounds INT, ptr %eWIDTH.array, i64 %o2
  %eWIDTH = load INT, ptr %eWIDTH.at, align 4
  %eWIDTH.wanted = trunc i64 %o3 to INT
  %eWIDTH.ok = icmp eq INT %eWIDTH, %eWIDTH.wanted
  br i1 %eWIDTH.ok, label %next, label %miss
indicesWIDTH:
  %xWIDTH.array = load ptr, ptr %data.at, align 8
  %xWIDTH.indptr = call ptr @pointer(ptr %data, i64 %o6)
  %xWIDTH.all = call i32 @spcomp_indicesWIDTH(ptr %xWIDTH.array, i64 %o2, i64 %o3, i64 %o4, i64 %o5,
                                              ptr %xWIDTH.indptr, i64 %o7)
  %xWIDTH.ok = icmp ne i32 %xWIDTH.all, 0
  br i1 %xWIDTH.ok, label %next, label %miss
"""

# How a call ends: its result, taking the GIL again, dropping the references.
_EXIT = """
return:
  call void @relock(ptr %state)
  switch i64 %k, label %return.tuple [
    i64 0, label %return.none
    i64 1, label %return.one
  ]
return.none:
  %none = call ptr @pointer(ptr %words, i64 3)
  br label %return.own
return.one:
  %one.number = call i64 @word(ptr %words, i64 %o2)
  %one = call ptr @pointer(ptr %objects, i64 %one.number)
  br label %return.own
return.own:
  %owned = phi ptr [ %none, %return.none ], [ %one, %return.one ], [ %not.mine, %miss ]
  call void @Py_IncRef(ptr %owned)
  br label %leave
return.tuple:
  %numbers = getelementptr inbounds i64, ptr %words, i64 %o2
  %several = call ptr @gather(ptr %objects, i64 %k, ptr %numbers)
  br label %leave
failed:
  call void @relock(ptr %state)
  %stopped = call ptr @PyErr_Occurred()    ; a signal's handler has raised
  %is.status = icmp eq ptr %stopped, null
  br i1 %is.status, label %tell, label %leave
tell:
  %status.wide = sext i32 %status to i64
  %status.begin = mul i64 %o3, STATUS
  %status.all = add i64 %status.begin, %status.wide
  %status.int = call ptr @PyLong_FromLongLong(i64 %status.all)
  br label %leave
miss:
  call void @relock(ptr %state)
  %interrupted = call ptr @PyErr_Occurred()  ; a check that a signal's handler has ended
  %is.miss = icmp eq ptr %interrupted, null
  br i1 %is.miss, label %return.own, label %leave
leave:
  %result = phi ptr [ %owned, %return.own ], [ %several, %return.tuple ], [ %status.int, %tell ],
    [ null, %which ], [ null, %failed ], [ null, %miss ]
  br label %drop
drop:
  %d = phi i64 [ 0, %leave ], [ %d.next, %drop.one ]
  %d.left = icmp slt i64 %d, %used
  br i1 %d.left, label %drop.one, label %exit
drop.one:
  %d.at = getelementptr inbounds ptr, ptr %objects, i64 %d
  %d.object = load ptr, ptr %d.at, align 8
  call void @Py_DecRef(ptr %d.object)
  %d.next = add i64 %d, 1
  br label %drop
exit:
  ret ptr %result
}

define internal ptr @gather(ptr %objects, i64 %count, ptr %numbers) #0 {  ; a tuple, or null
entry:
  %tuple = call ptr @PyTuple_New(i64 %count)
  %none = icmp eq ptr %tuple, null
  br i1 %none, label %exit, label %next
next:
  %n = phi i64 [ 0, %entry ], [ %n.next, %one ]
  %left = icmp slt i64 %n, %count
  br i1 %left, label %one, label %exit
one:
  %number = call i64 @word(ptr %numbers, i64 %n)
  %object = call ptr @pointer(ptr %objects, i64 %number)
  call void @Py_IncRef(ptr %object)      ; the tuple takes this reference
  %status = call i32 @PyTuple_SetItem(ptr %tuple, i64 %n, ptr %object)
  %n.next = add i64 %n, 1
  br label %next
exit:
  ret ptr %tuple
}

define i32 @spcomp_poll() #0 {
  %held = call i32 @PyGILState_Ensure()
  %raised = call i32 @PyErr_CheckSignals()
  call void @PyGILState_Release(i32 %held)
  ret i32 %raised
}

define internal void @relock(ptr %state) #0 {
  %thread = load ptr, ptr %state, align 8
  %held = icmp eq ptr %thread, null
  br i1 %held, label %exit, label %take
take:
  call void @PyEval_RestoreThread(ptr %thread)
  store ptr null, ptr %state, align 8
  br label %exit
exit:
  ret void
}
"""
