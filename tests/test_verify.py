"""The verifier accepts what a level allows, and names the pass and the law for what it does not."""

from __future__ import annotations

import numpy as np
import pytest

from spcomp import dtypes as dt
from spcomp.errors import FormatError, InternalError, ScriptError, Span
from spcomp.ir.access import Search
from spcomp.ir.axis import (
    Attach,
    Axis,
    Buffer,
    BufferDomain,
    Flatten,
    Fuse,
    Intersect,
    SparseBuffer,
    Union,
    domain_width,
)
from spcomp.ir.expr import (
    BinOp,
    Broadcast,
    Call,
    Cast,
    Const,
    Ramp,
    Reduce,
    Select,
    UnOp,
    Var,
    binary,
    const,
)
from spcomp.ir.module import HostAlloc, Launch, Module, Return, Scan, single
from spcomp.ir.position import Block, Case, Cursor, Merge, Region
from spcomp.ir.program import CoordFunc, FlatFunc, PosFunc
from spcomp.ir.stmt import Alloc, Evaluate, Fail, For, If, Let, Prefetch, Seq, While, seq
from spcomp.ir.verify.program import verify
from spcomp.script.parse import parse_source
from tests.interpret_helpers import (
    add,
    assembled,
    aux,
    block,
    compressed,
    dense,
    f32,
    fixed,
    flat,
    get,
    handle,
    i32,
    i64,
    loop,
    program,
    put,
    ragged,
    ramp,
    sp_iter,
    sparse,
    var,
)
from tests.script_helpers import body as script
from tests.test_interpret_flat import phases
from tests.test_interpret_position import csrmm

i, j, k, vi, vj, c, p, q = (var(name) for name in ("i", "j", "k", "vi", "vj", "c", "p", "q"))
ONE, TRUE, REAL = const(1), const(True, dt.bool_), const(1, f32)
I = dense("I", 3)
J = compressed("J", I, 4)
A, Y, N = sparse("A", (I, J)), sparse("Y", (I,)), sparse("N", (I,), i32)
X = flat("X", 8)
VEC = ramp(0, 4)
LEVELS = {"coordinate": CoordFunc, "position": PosFunc, "flat": FlatFunc}
BUFFERS = {"coordinate": (A, Y, N), "position": (A, Y, N, *aux(J)), "flat": (X,)}


def check(level, body, *buffers, **changes):
    verify(program(LEVELS[level], body, buffers or BUFFERS[level]).replace(**changes), "a_pass")


def refuses(level, message, body, *buffers, **changes):
    with pytest.raises(InternalError, match=f"after a_pass: {level} function test: .*{message}"):
        check(level, body, *buffers, **changes)


def test_programs_of_every_level_are_accepted():
    body = sp_iter([I, J], "SR", [i, j], add(Y, (i,), get(A, i, j)), put(Y, (i,), 0.0))
    check("coordinate", body)
    check("coordinate", sp_iter([I], "S", [i], sp_iter([J], "S", [j], put(A, (i, j), 1.0))))
    check("coordinate", sp_iter([Fuse((I, J))], "SS", [i, j], put(A, (i, j), 1.0)))
    check("coordinate", sp_iter([Flatten((I, J))], "S", [i], Evaluate(i)))
    check("coordinate", sp_iter([I, J, Attach(J, J)], "SSR", [i, j, k], put(A, (i, k), 1.0)))
    verify(csrmm(), "a_pass")
    check("position", loop(i, 3, Evaluate(get(A, None, i))))
    check("flat", seq(put(X, (VEC,), get(X, VEC, mask=_lanes(TRUE))), Prefetch(X, (ONE,))))
    check("flat", put(X, (0,), Reduce("+", get(X, VEC))))
    check("flat", seq(Let(c, ONE, Evaluate(c)), While(TRUE, Fail("now")), Seq(())))
    verify(phases(), "a_pass")


def _lanes(value):
    return Broadcast(value, 4)


ANYWHERE = [
    ("variable i is not bound here", Evaluate(i)),
    ("variable i is bound twice", Let(i, ONE, loop(i, 2, Seq(())))),
    ("variable c is bound twice", seq(Let(c, ONE, Seq(())), Let(c, ONE, Seq(())))),
    ("variable c is not bound here", Let(c, c, Seq(()))),
    (r"operator \+ combines int64 and float32", Evaluate(BinOp("+", ONE, REAL))),
    (r"operator \+ on bool", Evaluate(BinOp("+", TRUE, TRUE))),
    ("operator / on int64", Evaluate(BinOp("/", ONE, ONE))),
    ("operator and on int64", Evaluate(BinOp("and", ONE, ONE))),
    ("operator & on float32", Evaluate(BinOp("&", REAL, REAL))),
    ("operator << on bool", Evaluate(BinOp("<<", TRUE, TRUE))),
    ("operator not on int64", Evaluate(UnOp("not", ONE))),
    ("operator - on bool", Evaluate(UnOp("-", TRUE))),
    ("operator ~ on float32", Evaluate(UnOp("~", REAL))),
    ("a cast from int64 to handle", Evaluate(Cast(ONE, dt.handle))),
    ("a cast from int64 to float32x4", Evaluate(Cast(ONE, f32.with_lanes(4)))),
    ("a select combines", Evaluate(Select(TRUE, ONE, REAL))),
    ("a select's condition has dtype int64, not bool", Evaluate(Select(ONE, ONE, ONE))),
    ("a call of exp on int64", Evaluate(Call("exp", (ONE,)))),
    ("a call of popcount on float32", Evaluate(Call("popcount", (REAL,)))),
    ("a call of gamma with 1 arguments", Evaluate(Call("gamma", (REAL,)))),
    ("a call of pow with 1 arguments", Evaluate(Call("pow", (REAL,)))),
    ("pow combines float32 and int64", Evaluate(Call("pow", (REAL, ONE)))),
    ("a literal of int64 is 1.0", Evaluate(Const(1.0, i64))),
    ("a literal of float32 is 1", Evaluate(Const(1, f32))),
    ("a literal of bool is 1", Evaluate(Const(1, dt.bool_))),
    ("a condition has dtype int64, not bool", If(ONE, Seq(()))),
    ("a loop's condition has dtype int64, not bool", While(ONE, Seq(()))),
    ("a bound of loop i has dtype int32, not int64", For(i, const(0, i32), ONE, Seq(()))),
    ("loop f is serial, over int32", For(var("f", i32), ONE, ONE, Seq(()))),
    ("loop i is sideways", For(i, ONE, ONE, Seq(()), "sideways")),
    ("loop i is bound, its thread ''", For(i, ONE, ONE, Seq(()), "bound")),
    ("loop i is serial, its thread 'threadIdx.x'", For(i, ONE, ONE, Seq(()), thread="threadIdx.x")),
    ("the value of c has dtype float32, not int64", Let(c, REAL, Seq(()))),
    ("buffer W is not declared here", Evaluate(get(flat("W", 1), 0))),
    ("buffer W is allocated and declared", Alloc(flat("W", 1), Seq(()))),
]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("message", "body"), ANYWHERE, ids=[message for message, _ in ANYWHERE])
def test_laws_of_all_levels(level, message, body):
    refuses(level, message, body)


SPARSE_LEVELS = [
    ("Y has 1 axes, 2 indices", put(Y, (0, 0), 1.0)),
    ("A has 2 axes, 1 indices", Evaluate(get(A, 0))),
    ("an index of Y has dtype float32", Evaluate(get(Y, REAL))),
    ("an index of Y has dtype bool", put(Y, (TRUE,), 1.0)),
    ("a value stored in Y has dtype int64, not float32", put(Y, (0,), ONE)),
    (
        "a vector of int64x4 stands above the flat level",
        Evaluate(get(Y, Var("v", i64.with_lanes(4)))),
    ),
    ("a mask stands above the flat level", Evaluate(get(Y, 0, mask=TRUE))),
    ("a ramp stands above the flat level", Evaluate(VEC)),
    ("a broadcast stands above the flat level", Evaluate(_lanes(ONE))),
    ("a vector reduction stands above the flat level", Evaluate(Reduce("+", VEC))),
    ("Y has 1 axes, 2 indices", Prefetch(Y, (ONE, ONE))),
    ("axis F of W is not declared", Alloc(SparseBuffer("W", None, (dense("F", 2),), f32), Seq(()))),
    ("a search for float32 in int32", Evaluate(Search("lower", N, ONE, ONE, REAL))),
    ("the end of a search has dtype bool", Evaluate(Search("lower", N, ONE, TRUE, ONE))),
    ("index 0 of Y is missing", Evaluate(get(Y, None))),
]


@pytest.mark.parametrize("level", ["coordinate", "position"])
@pytest.mark.parametrize(("message", "body"), SPARSE_LEVELS, ids=[m for m, _ in SPARSE_LEVELS])
def test_laws_of_the_levels_with_sparse_buffers(level, message, body):
    if "vector of" in message:
        body = Let(body.value.indices[0], VEC, body)
        message = "a ramp|" + message
    refuses(level, message, body)


COORDINATE = [
    ("Block does not belong to this level", Block("b", (), (), (), None, Seq(()))),
    ("Merge does not belong to this level", Merge("union", c, (), ())),
    ("index 0 of A is missing", Evaluate(get(A, None, 0))),
    ("2 domain variables, 1 variables, kinds 'S'", sp_iter([I, J], "S", [i], Seq(()))),
    ("2 domain variables, 2 variables, kinds 'S'", sp_iter([I, J], "S", [i, j], Seq(()))),
    ("kinds 'X'", sp_iter([I], "X", [i], Seq(()))),
    ("has a variable that is not int64", sp_iter([I], "S", [var("f", i32)], Seq(()))),
    ("axis F of iteration it is not declared", sp_iter([dense("F", 2)], "S", [i], Seq(()))),
    ("runs over J without its parent", sp_iter([J], "S", [j], Seq(()))),
    ("runs over J without its parent", sp_iter([J, I], "SS", [j, i], Seq(()))),
    ("runs over J without its parent", sp_iter([Union((I, J))], "S", [j], Seq(()))),
    ("J is attached to I, not run over", sp_iter([Attach(J, I)], "S", [j], Seq(()))),
    ("variable j is not bound", sp_iter([I, J], "SR", [i, j], Seq(()), put(A, (i, j), 0.0))),
]


@pytest.mark.parametrize(("message", "body"), COORDINATE)
def test_laws_of_the_coordinate_level(message, body):
    refuses("coordinate", message, body)


def in_block(**more):
    fields = {"iters": (), "reads": (), "writes": (), "init": None, "body": Seq(())} | more
    return Block("b", **fields)


def merging(cases, cursors=None, kind="union"):
    made = cursors or (Cursor(p, N, ONE, ONE), Cursor(q, None, ONE, ONE))
    return Merge(kind, c, made, tuple(Case(present, body) for present, body in cases))


POSITION = [
    ("SpIter does not belong to this level", sp_iter([I], "S", [i], Seq(()))),
    ("block b occurs twice", seq(in_block(), in_block())),
    ("loop i occurs twice", seq(loop(i, 2, Seq(())), loop(var("i"), 2, Seq(())))),
    ("the value of vi has dtype float32", block("b", [("S", vi, 3, REAL)], Seq(()))),
    ("variable vi is not bound", block("b", [("S", vi, 3, vi)], Seq(()))),
    ("the extent of vi has dtype bool", block("b", [("S", vi, TRUE, ONE)], Seq(()))),
    ("block variable vi is int64 X", block("b", [("X", vi, 3, ONE)], Seq(()))),
    ("variable vj is not bound", block("b", [("R", vj, 3, ONE)], Seq(()), put(Y, (vj,), 0.0))),
    ("the guard of block b has dtype int64", in_block(where=ONE)),
    ("a region of A has not 2 ranges", in_block(reads=(Region(A, (ONE,), (ONE,)),))),
    ("a bound of a region of Y has dtype", in_block(writes=(Region(Y, (ONE,), (REAL,)),))),
    ("a region of A has one bound", in_block(reads=(Region(A, (None, ONE), (ONE, ONE)),))),
    ("index 0 of Y is missing", in_block(reads=(Region(Y, (None,), (None,)),))),
    ("buffer X is not declared here", in_block(reads=(Region(X, (ONE,), (ONE,)),))),
    ("a merge is either, over int64", merging([], kind="either")),
    ("a merge of 2 cursors has the cases", merging([((True, False), Seq(()))] * 2)),
    ("a merge of 2 cursors has the cases", merging([((True,), Seq(()))])),
    ("a merge of 0 cursors has the cases", Merge("union", c, (), ())),
    ("variable q is not bound here", merging([((True, False), Evaluate(q))])),
    ("a bound of cursor p has dtype float32", merging([], (Cursor(p, N, ONE, REAL),))),
    ("a merge over Y, no integers", merging([], (Cursor(p, Y, ONE, ONE),))),
    ("cursor f has dtype int32", merging([], (Cursor(var("f", i32), N, ONE, ONE),))),
    ("buffer X is not declared here", merging([], (Cursor(p, X, ONE, ONE),))),
]


@pytest.mark.parametrize(("message", "body"), POSITION)
def test_laws_of_the_position_level(message, body):
    refuses("position", message, body)


def test_what_merges_and_absolute_positions_allow():
    body = merging([((True, False), Evaluate(p)), ((True, True), Evaluate(binary("+", p, q)))])
    check("position", body)
    check("position", in_block(reads=(Region(A, (None, ONE), (None, ONE)),)))


FLAT = [
    ("SpIter does not belong to this level", sp_iter([I], "S", [i], Seq(()))),
    ("Block does not belong to this level", in_block()),
    ("Merge does not belong to this level", merging([])),
    ("X has 1 axes, 2 indices", put(X, (0, 0), 1.0)),
    ("a value stored in X has dtype float32, not float32x4", put(X, (VEC,), 1.0)),
    ("the mask of X has dtype bool, not boolx4", Evaluate(get(X, VEC, mask=TRUE))),
    ("a vector of 1 lanes", Evaluate(Ramp(ONE, 1, 1))),
    ("the base of a ramp has dtype float32", Evaluate(Ramp(REAL, 1, 4))),
    ("a vector of 0 lanes", Evaluate(Broadcast(ONE, 0))),
    ("a broadcast of int64x4", Evaluate(Broadcast(VEC, 4))),
    ("a reduction by - of int64x4", Evaluate(Reduce("-", VEC))),
    (r"a reduction by \+ of int64", Evaluate(Reduce("+", ONE))),
    ("a condition has dtype boolx4, not bool", If(_lanes(TRUE), Seq(()))),
    ("a select by boolx4 of int64", Evaluate(Select(_lanes(TRUE), ONE, ONE))),
    ("an index of X has dtype float32", Prefetch(X, (REAL,))),
    ("buffer W is not one-dimensional", Alloc(Buffer("W", None, (ONE, ONE), f32), Seq(()))),
    ("buffer W is not one-dimensional", Alloc(SparseBuffer("W", None, (), f32), Seq(()))),
]


@pytest.mark.parametrize(("message", "body"), FLAT)
def test_laws_of_the_flat_level(message, body):
    refuses("flat", message, body)


def bad_axis(**changes):
    return compressed("Q", I, 4).replace(**changes)


DECLARATIONS = [
    ("axis Q is sparse_variable, its parent is None", bad_axis(parent=None)),
    ("axis Q is sparse_variable and has no array|lies at no array", bad_axis(indices=None)),
    ("axis Q is assembled and has indices", bad_axis(indptr=None)),
    ("axis Q is dense_variable and has indices", bad_axis(kind="dense_variable")),
    ("nnz_cols of Q does not suit its kind", bad_axis(nnz_cols=ONE)),
    ("nnz_cols of Q does not suit its kind", fixed("Q", I, 4, 2).replace(nnz_cols=None)),
    ("axis Q has the index type int16", bad_axis(idtype=dt.int16)),
    ("axis Q has the index type uint32", bad_axis(idtype=dt.uint32)),
    ("an extent of Q has dtype float32", bad_axis(length=REAL)),
    ("variable i is not bound here", bad_axis(length=i)),
]


@pytest.mark.parametrize(("message", "axis"), DECLARATIONS)
def test_laws_of_axes(message, axis):
    refuses("coordinate", message, Seq(()), SparseBuffer("B", handle("b"), (axis,), f32), Y)


def test_axes_of_all_kinds_are_accepted():
    axes = [(I, ragged("V", I, 4)), (I, fixed("S", I, 4, 2)), (I, assembled("Z", I, 4))]
    for number, pair in enumerate(axes):
        check("coordinate", Seq(()), sparse(f"B{number}", pair))


def test_laws_of_declarations():
    refuses("coordinate", "axis J is declared before its parent I", Seq(()), axes=(J, I))
    refuses("coordinate", "axis J of A is not declared", Seq(()), axes=(I,))
    refuses("coordinate", "axis I is declared twice", Seq(()), axes=(I, J, dense("I", 3)))
    refuses(
        "coordinate",
        "buffer Y is declared twice",
        Seq(()),
        Y,
        sparse("Y", (I,)).replace(data=Y.data),
    )
    refuses("coordinate", "Y lies at y, which is no handle", Seq(()), Y, params=())
    refuses("flat", "X lies at no array, which is no handle", Seq(()), X.replace(data=None))
    refuses("flat", "parameter x is declared twice", Seq(()), params=(X.data, var("x")))
    refuses("flat", "axis I is declared at flat level", Seq(()), axes=(I,))
    refuses("flat", "the handle x is used as a value", Evaluate(X.data))
    refuses("flat", "an extent of X has dtype float32", Seq(()), X.replace(shape=(REAL,)))
    refuses("flat", "buffer X is not one-dimensional", Seq(()), X.replace(strides=(ONE,)))
    strided = Buffer("D", handle("d"), (ONE, ONE), f32, strides=(ONE,))
    refuses("position", "D has not one stride for each dimension", Seq(()), strided)
    unknown = (BufferDomain(flat("W", 1), ONE, ONE),)
    refuses("flat", "a domain is given for W, which is undeclared", Seq(()), domains=unknown)
    refuses("flat", "an extent of X has", Seq(()), domains=(BufferDomain(X, REAL, ONE),))


K = compressed("K", I, 4)
ONCE = sp_iter([I], "S", [i], Seq(()))


def over(*domains):
    names = (i, j, k)[: sum(map(domain_width, domains))]
    return sp_iter([*domains], "S" * len(names), [*names], Seq(()))


def buffer(*axes):
    return SparseBuffer("B", handle("b"), axes, f32)


# What the parser refuses, the same as IR, and the law that it breaks.
TWINS = [
    ("T.match_sparse_buffer(ptr, (I, I))", buffer(I, I), "I occurs twice in one buffer"),
    ("T.match_sparse_buffer(ptr, (J,))", buffer(J), "J hangs on I, which is not an axis"),
    ("T.match_sparse_buffer(ptr, (J, I))", buffer(J, I), "J hangs on I, which comes after it"),
    ("T.match_sparse_buffer(ptr, (I, J, K))", buffer(I, J, K), "two variable siblings"),
    (
        "T.match_sparse_buffer(b, (I,))",
        buffer(I).replace(data=Y.data),
        "handle y is declared twice",
    ),
    (
        "T.sparse_variable(I, (n, nnz), (None, None))",
        bad_axis(indptr=None, indices=None, nnz=ONE),
        "or nnz",
    ),
    ("T.sparse_variable(I, (n, nnz), (ptr, None))", bad_axis(indices=None), "lies at no array"),
    ("T.sp_iter([T.fuse(I, N)], 'SS')", over(Fuse((I, dense("N", 4)))), "a Fuse of no such axes"),
    ("T.sp_iter([T.flatten()], 'S')", over(Flatten(())), "a Flatten of no such axes"),
    ("T.sp_iter([T.union(I)], 'S')", over(Union((I,))), "a Union of no such axes"),
    (
        "T.sp_iter([T.intersect(I, T.fuse(I, J))], 'S')",
        over(Intersect((I, Fuse((I, J))))),
        "no such",
    ),
    ("T.sp_iter([I, T.attach(I, I)], 'SS')", over(I, Attach(I, I)), "a Attach of no such axes"),
    (
        "T.thread_binding(4, 'blockIdx.w')",
        For(i, ONE, ONE, ONCE, "bound", "blockIdx.w"),
        "blockIdx.w",
    ),
    (
        "T.parallel(4, annotations={'grain': 0})",
        For(i, ONE, ONE, ONCE, "parallel", attrs=(("grain", 0),)),
        "has the grain 0",
    ),
    ("T.int8(300)", Evaluate(Const(300, dt.int8)), "the literal 300 does not fit int8"),
    (
        "T.lower_bound(B, 0, 4, big, slope=2**31)",
        Evaluate(Search("lower", N, ONE, ONE, ONE, 2**31)),
        "a search with the slope 2147483648",
    ),
]


@pytest.mark.parametrize(("text", "ir", "law"), TWINS, ids=[text for text, *_ in TWINS])
def test_what_the_parser_refuses_breaks_a_law(text, ir, law):
    match text.partition("(")[0]:
        case "T.sp_iter":
            lines = [f"with {text} as _:", "    T.evaluate(0)"]
        case "T.thread_binding" | "T.parallel":
            lines = [f"for i in {text}:", "    T.evaluate(0)"]
        case "T.int8" | "T.lower_bound":
            lines = [f"T.evaluate({text})"]
        case _:
            lines = ["K = T.sparse_variable(I, (n, nnz), (ptr, idx))", f"X = {text}"]
    with pytest.raises((ScriptError, FormatError)):
        parse_source(script(*lines, "with T.sp_iter([I], 'S') as [i]:", "    B[i] = 1.0"), "f.py")
    if isinstance(ir, Axis):
        ir = SparseBuffer("B", handle("b"), (I, ir), f32)
    buffers = (Y, ir) if isinstance(ir, SparseBuffer) else (A, Y, N)
    refuses("coordinate", law, Seq(()) if isinstance(ir, SparseBuffer) else ir, *buffers)


def test_the_place_in_the_source_is_told():
    with pytest.raises(InternalError, match=r"variable i is not bound here \(f.py:3:5\)"):
        check("flat", Evaluate(i.replace(span=Span("f.py", 3, 4))))


def test_laws_of_modules():
    module = phases()

    def refused(message, *, funcs=module.funcs, host=module.host):
        with pytest.raises(InternalError, match=f"after a_pass: module test: {message}"):
            verify(Module(module.source, funcs, host), "a_pass")

    refused("its functions are of several levels", funcs=(*module.funcs, program(PosFunc, Seq(()))))
    refused("it has two functions of one name", funcs=(module.funcs[0], module.funcs[0]))
    refused("the host launches gone, which does not exist", host=(Launch("gone"),))
    refused("count uses Z_indptr, which is neither given nor allocated", host=(Launch("count"),))
    refused("the size of v uses Z_indptr", host=(module.host[3],))
    square = HostAlloc(Buffer("S", None, (ONE, ONE), f32))
    refused("the host allocates S, not one-dimensional", host=(square,))
    refused("the host allocates Z_indptr twice", host=(module.host[0], module.host[0]))
    refused("a scan uses Z_indptr", host=(Scan(module.host[0].buffer),))
    refused("the return uses v", host=(Return((module.host[3].buffer,)),))
    wrong = single(program(FlatFunc, Evaluate(i)))
    with pytest.raises(InternalError, match="flat function test: variable i is not bound"):
        verify(wrong, "a_pass")


def test_a_verified_program_runs():
    func = csrmm()
    verify(func, "a_pass")
    assert np.int64(len(func.buffers)) == 5
