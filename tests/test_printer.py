"""What is printed parses back to the same program: every node, every level, every typing case."""

from __future__ import annotations

import itertools
import math
import random
import re

import pytest

from spcomp.dtypes import (
    DType,
    bool_,
    float32,
    float64,
    handle,
    int8,
    int32,
    int64,
    promote,
    uint32,
)
from spcomp.ir.access import Load, Search
from spcomp.ir.axis import (
    Attach,
    Axis,
    Buffer,
    BufferDomain,
    Flatten,
    Fuse,
    Intersect,
    SparseBuffer,
)
from spcomp.ir.axis import Union as UnionOf
from spcomp.ir.coordinate import SpIter
from spcomp.ir.expr import (
    BinOp,
    Broadcast,
    Call,
    Cast,
    Expr,
    Ramp,
    Reduce,
    Select,
    UnOp,
    Var,
    const,
)
from spcomp.ir.module import HostAlloc, Launch, Module, Return, Scan, single
from spcomp.ir.position import Block, BlockIter, Case, Cursor, Merge, Region
from spcomp.ir.printer.program import print_expr, print_func, print_module, print_program
from spcomp.ir.program import CoordFunc, FlatFunc, PosFunc
from spcomp.ir.stmt import (
    Alloc,
    Evaluate,
    Fail,
    For,
    If,
    Let,
    Prefetch,
    Seq,
    Store,
    While,
)
from spcomp.ir.structural import structural_equal
from spcomp.script.parse import parse_source

SCALARS = {t: Var(f"x_{t}", t) for t in (bool_, int8, int32, uint32, int64, float32, float64)}
A_DATA, N = Var("a", handle), Var("n", int32)
A = Buffer("A", A_DATA, (N,), float32)
P = Buffer("P", Var("p", handle), (N,), int32)
I64 = Var("q", int64)
PARAMS = (A_DATA, P.data, N, I64, *SCALARS.values())
ONE, ZERO = const(1), const(0)


def body_of(text):
    return text.partition('"sparse_tir_level"')[2].partition("\n")[2]


def check(program):
    text = print_program(program)
    (back,) = parse_source(text, "printed.py")
    assert structural_equal(back, program), f"{text}\n---\n{print_program(back)}"
    assert print_program(back) == text
    return body_of(text)


def flat(*stmts, buffers=(A, P), params=PARAMS):
    body = stmts[0] if len(stmts) == 1 else Seq(stmts)
    return FlatFunc("f", params, (), buffers, body)


def spelled(expr: Expr) -> str:
    """Return how *expr* prints alone, having checked that it parses back."""
    line = check(flat(Evaluate(expr))).strip().splitlines()[-1].strip()
    return line.removeprefix("T.evaluate(").removesuffix(")")


X, Y, F = SCALARS[int32], SCALARS[int64], SCALARS[float32]


@pytest.mark.parametrize(
    ("expr", "text"),
    [
        (const(1), "1"),
        (const(1, int32), "T.int32(1)"),
        (const(-1), "-1"),
        (const(0.5, float64), "0.5"),
        (const(0.5, float32), "T.float32(0.5)"),
        (const(True, bool_), "True"),
        (const(-math.inf, float32), 'T.min_value("float32")'),
        (const(math.inf, float64), 'T.max_value("float64")'),
        (const(math.nan, float32), 'T.float32("nan")'),
        (const(-0.0, float64), "-0.0"),
        (BinOp("+", F, const(2, float32)), "x_float32 + 2.0"),
        (BinOp("+", Cast(X, int64), Y), "x_int32 + x_int64"),
        (BinOp("*", Cast(X, float32), F), "x_int32 * x_float32"),
        (BinOp("+", ONE, ONE), "1 + T.int64(1)"),
        (BinOp("+", Cast(X, int64), ONE), "x_int32 + T.int64(1)"),
        (BinOp("-", Cast(X, int64), Cast(X, int64)), 'x_int32 - T.cast(x_int32, "int64")'),
        (BinOp("/", Cast(X, float64), Cast(Y, float64)), "x_int32 / x_int64"),
        (BinOp("+", X, BinOp("+", X, X)), "x_int32 + (x_int32 + x_int32)"),
        (BinOp("*", BinOp("+", X, X), X), "(x_int32 + x_int32) * x_int32"),
        (BinOp("min", X, BinOp("max", X, X)), "T.min(x_int32, T.max(x_int32, x_int32))"),
        (BinOp("<", BinOp("<", X, X), SCALARS[bool_]), "(x_int32 < x_int32) < x_bool"),
        (UnOp("-", const(1)), "-T.int64(1)"),
        (UnOp("not", BinOp("<", X, X)), "not x_int32 < x_int32"),
        (UnOp("~", UnOp("-", X)), "~-x_int32"),
        (UnOp("not", const(True, bool_)), "not T.bool(True)"),
        (Cast(const(1), float32), 'T.cast(T.int64(1), "float32")'),
        (Cast(F, float32), 'T.cast(x_float32, "float32")'),
        (Cast(Cast(F, int32), int64), 'T.cast(T.cast(x_float32, "int32"), "int64")'),
        (
            Select(SCALARS[bool_], const(1.0, float64), const(0.0, float64)),
            "T.if_then_else(x_bool, 1.0, 0.0)",
        ),
        (
            Select(SCALARS[bool_], const(1, float32), const(0, float32)),
            "T.if_then_else(x_bool, 1.0, T.float32(0.0))",
        ),
        (
            BinOp("*", F, Select(SCALARS[bool_], const(1, float32), const(0, float32))),
            "x_float32 * T.if_then_else(x_bool, 1.0, 0.0)",
        ),
        (Call("exp", (F,)), "T.exp(x_float32)"),
        (Call("exp", (const(1.0, float64),)), "T.exp(T.float64(1.0))"),
        (Call("sqrt", (Cast(X, float64),)), "T.sqrt(x_int32)"),
        (Call("fma", (F, const(2, float32), F)), "T.fma(x_float32, 2.0, x_float32)"),
        (Call("isnan", (F,)), "T.isnan(x_float32)"),
        (Load(A, (X,)), "A[x_int32]"),
        (Load(A, (X,), SCALARS[bool_]), "T.masked_load(A, x_int32, x_bool)"),
        (Load(A, (Ramp(Y, 1, 8),)), "A[T.ramp(x_int64, 1, 8)]"),
        (Reduce("+", Load(A, (Ramp(Y, 2, 4),))), 'T.vector_reduce("+", A[T.ramp(x_int64, 2, 4)])'),
        (Broadcast(const(2, float32), 4), "T.broadcast(T.float32(2.0), 4)"),
        (Search("lower", A, ZERO, Cast(N, int64), F), "T.lower_bound(A, 0, n, x_float32)"),
        (Search("upper", A, I64, ONE, F), "T.upper_bound(A, q, 1, x_float32)"),
        (Search("gallop", A, ZERO, ONE, F), "T.gallop(A, 0, 1, x_float32)"),
        (Search("linear", A, ZERO, ONE, F), "T.linear_search(A, 0, 1, x_float32)"),
        (Search("run", A, ZERO, ONE, F), "T.run_end(A, 0, 1, x_float32)"),
        (Search("probe", P, ZERO, ONE, X), "T.hash_probe(P, 0, 1, x_int32)"),
    ],
    ids=str,
)
def test_an_expression_prints_bare_and_parses_back(expr, text):
    assert spelled(expr) == text


ARITHMETIC = ("+", "-", "*", "//", "%", "min", "max", "<", "==", "!=", ">=")
OTHERS = {
    "/": (float32, float64),
    "and": (bool_,),
    "or": (bool_,),
    "&": (bool_, int32, uint32),
    "|": (int64,),
    "^": (int8,),
    "<<": (int32,),
    ">>": (uint32,),
}


@pytest.mark.parametrize("op", [*ARITHMETIC, *OTHERS])
def test_operands_of_every_type_and_spelling_parse_back(op):
    numbers = (int8, int32, uint32, int64, float32, float64)
    for dtype in OTHERS.get(op, numbers):
        operands = [SCALARS[dtype], const(1, dtype)]
        operands += [Cast(v, dtype) for t, v in SCALARS.items() if t != dtype]
        made = [Evaluate(BinOp(op, a, b)) for a, b in itertools.product(operands, operands)]
        check(flat(*made))


def _random(draw: random.Random, dtype: DType, depth: int) -> Expr:
    """Return a random expression of *dtype*."""
    if depth == 0 or draw.random() < 0.15:
        value = draw.choice([0, 1, 3, 0.1, -2.5, math.inf] if dtype.is_float else [0, 1])
        return draw.choice([SCALARS[dtype], const(value, dtype)])

    def one(of: DType) -> Expr:
        return _random(draw, of, depth - 1)

    if dtype == bool_:
        op, of = draw.choice([("<", int32), ("==", float32), ("and", bool_), ("&", bool_)])
        return draw.choice([BinOp(op, one(of), one(of)), UnOp("not", one(bool_))])
    other = draw.choice([t for t in (int32, int64, float32, float64) if t != dtype])
    ops = ["+", "-", "*", "min", "max", "%", "//", *(["/"] if dtype.is_float else [])]
    choices = [
        lambda: BinOp(draw.choice(ops), one(dtype), one(dtype)),
        lambda: BinOp(draw.choice(ops), one(dtype), one(dtype)),
        lambda: UnOp("-", one(dtype)),
        lambda: Select(one(bool_), one(dtype), one(dtype)),
        lambda: Cast(one(other), dtype),
        lambda: Call("fma", (one(dtype), one(dtype), one(dtype))),
    ]
    return draw.choice(choices)()


@pytest.mark.parametrize("seed", range(120))
def test_a_random_expression_parses_back(seed):
    draw = random.Random(seed)
    expr = _random(draw, draw.choice([int32, int64, float32, float64, bool_]), 5)
    buffer = Buffer("B", A_DATA, (N,), expr.dtype)
    bound = Let(Var("y", expr.dtype), expr, Seq(()))
    check(flat(Evaluate(expr), Store(buffer, (ZERO,), expr), bound, buffers=(buffer,)))


@pytest.mark.parametrize(
    ("dtype", "value", "text"),
    [
        (float32, const(0, float32), "0.0"),
        (float32, Cast(X, float32), "x_int32"),
        (float32, Cast(SCALARS[float64], float32), "x_float64"),
        (int32, const(3, int32), "3"),
        (int32, Cast(Y, int32), "x_int64"),
        (int32, Cast(F, int32), 'T.cast(x_float32, "int32")'),
        (float32, Cast(const(1), float32), 'T.cast(T.int64(1), "float32")'),
        (
            float32,
            Select(SCALARS[bool_], const(1, float32), const(0, float32)),
            "T.if_then_else(x_bool, 1.0, 0.0)",
        ),
        (bool_, const(True, bool_), "True"),
    ],
    ids=str,
)
def test_a_stored_value_leaves_out_the_cast_that_the_store_makes(dtype, value, text):
    buffer = Buffer("B", A_DATA, (N,), dtype)
    printed = check(flat(Store(buffer, (X,), value), buffers=(buffer,)))
    assert printed.strip().endswith(f"B[x_int32] = {text}")


def _vector_store(**options):
    mask = Broadcast(SCALARS[bool_], 8)
    return Store(A, (Ramp(ZERO, 1, 8),), Load(A, (Ramp(ZERO, 1, 8),)), mask, **options)


V, W = Var("v", int64), Var("v", int64)
STATEMENTS = [
    Let(V, ONE, Store(A, (V,), const(1, float32))),
    Let(V, Cast(X, int64), Seq(())),
    Seq((Let(V, ONE, Evaluate(V)), Evaluate(X))),
    Seq((Alloc(Buffer("L", None, (ONE,), float32, "local"), Seq(())), Evaluate(X))),
    Alloc(Buffer("L", None, (Cast(X, int64),), float32), Evaluate(ONE)),
    If(BinOp("<", X, X), Evaluate(X)),
    If(BinOp("<", X, X), Evaluate(X), Evaluate(Y)),
    If(BinOp("<", X, X), Evaluate(X), If(SCALARS[bool_], Evaluate(Y), Fail('say "no"\n'))),
    Fail("\U0001f600"),
    If(SCALARS[bool_], Seq(()), Seq((Evaluate(X), If(SCALARS[bool_], Evaluate(Y))))),
    If(Cast(X, bool_), Seq(())),
    While(BinOp("<", Load(A, (X,)), F), Store(A, (X,), F)),
    For(V, ZERO, Cast(N, int64), Evaluate(V)),
    For(V, Cast(N, int64), ONE, Seq(()), "parallel", attrs=(("chunk", 8), ("how", ("a", None)))),
    For(V, ZERO, const(8), Evaluate(V), "vectorized"),
    For(V, ZERO, const(8), Evaluate(V), "unroll"),
    For(V, ONE, const(8), Evaluate(V), "bound", "blockIdx.x"),
    Seq((For(W, ZERO, ONE, Evaluate(W)), For(V, ZERO, ONE, Evaluate(V)))),
    For(Var("v", int64), ZERO, ONE, For(V, ZERO, ONE, Evaluate(V))),
    For(Var("n", int64), ZERO, ONE, Evaluate(N)),
    For(Var("_", int64), ZERO, ONE, Seq(())),
    For(Var("lambda", int64), ZERO, ONE, Seq(())),
    For(Var("i.outer", int64), ZERO, ONE, Seq(())),
    Prefetch(A, (BinOp("+", Y, ONE),)),
    _vector_store(),
    _vector_store(atomic=True),
    Store(A, (X,), F, atomic=True),
    Seq(()),
]


@pytest.mark.parametrize("stmt", STATEMENTS, ids=lambda s: type(s).__name__)
def test_a_statement_of_flat_level_parses_back(stmt):
    buffer = next((b for b in _buffers(stmt) if b.name == "A"), A)
    check(flat(stmt, buffers=(buffer,)))


def _buffers(stmt):
    from spcomp.ir.visitor import walk

    return [n.buffer for n in walk(stmt) if hasattr(n, "buffer")]


def test_nested_names_are_numbered_and_sibling_names_are_kept():
    inner = For(Var("i", int64), ZERO, ONE, Seq(()))
    text = check(flat(For(Var("i", int64), ZERO, ONE, inner), inner.replace(var=Var("i", int64))))
    assert [line.split()[1] for line in text.splitlines() if "for" in line] == ["i", "i_1", "i"]


# -- coordinate level ------------------------------------------------------------------------

M = Var("m", int32)
PTR, IDX, PTR2, IDX2, B_DATA = (Var(s, handle) for s in ("ptr", "idx", "ptr2", "idx2", "b"))
I = Axis("I", "dense_fixed", M)
J = Axis("J", "sparse_variable", N, I, N, None, PTR, IDX)
AXES = (
    I,
    J,
    Axis("K", "sparse_variable", N, J, None, None, PTR2, IDX2, int64, False, False),
    Axis("D", "dense_variable", N, I, N, None, PTR),
    Axis("E", "dense_variable", N, I, None, None, PTR, idtype=int64),
    Axis("F", "sparse_fixed", N, I, None, const(4), None, IDX, sorted=False),
    Axis("R", "dense_fixed", const(7), idtype=int64),
    Axis("Z", "sparse_variable", N, I),
)
SPARSE = SparseBuffer("S", A_DATA, (I, J), float32)
HANDLES = (A_DATA, B_DATA, PTR, IDX, PTR2, IDX2, M, N)
i, j, k = (Var(s, int64) for s in "ijk")


def coord(body, buffers=(SPARSE,), domains=(), attrs=()):
    return CoordFunc("g", HANDLES, AXES, buffers, body, domains, attrs)


@pytest.mark.parametrize(
    ("domains", "kinds", "bound"),
    [
        ((I, J), "SR", (i, j)),
        ((Fuse((I, J)),), "SR", (i, j)),
        ((Fuse((I, J)), AXES[2]), "SRR", (i, j, k)),
        ((Flatten((I, J)),), "S", (i,)),
        ((I, Attach(J, I)), "SR", (i, j)),
        ((I, UnionOf((J, AXES[3]))), "SS", (i, j)),
        ((I, Intersect((J, AXES[3], AXES[4]))), "SS", (i, j)),
    ],
    ids=str,
)
def test_every_domain_parses_back(domains, kinds, bound):
    check(coord(SpIter(bound, domains, kinds, "it", None, Evaluate(bound[-1]))))


def test_an_iteration_with_init_attributes_and_another_inside_parses_back():
    store = Store(SPARSE, (i, j), const(0, float32))
    inner = SpIter((j,), (J,), "S", "inner", store, Seq(()), (("fuse", True),))
    text = check(coord(SpIter((i,), (I,), "S", "outer", None, inner)))
    assert "T.sp_iter_attr" in text
    assert text.index("outer") < text.index("inner")


def test_every_option_of_a_buffer_parses_back():
    buffers = (
        SparseBuffer("S", A_DATA, (I, J), float32, "shared", -1.5, 3),
        SparseBuffer("Y", B_DATA, (I,), float64, fill=math.inf),
        Buffer("W", PTR2, (M, N), float32, strides=(N, ONE)),
    )
    domains = (BufferDomain(buffers[0], ZERO, BinOp("-", N, const(1, int32))),)
    local = Alloc(SparseBuffer("L", None, (I,), float32, fill=2), Evaluate(ONE))
    attrs = (("global_symbol", "main"), ("odd", {"a": (1, 2.5)}), ("nothing", None))
    check(coord(local, buffers, domains, attrs))


def test_a_nan_fill_is_printed_as_the_parser_reads_it():
    text = print_func(coord(Seq(()), (SPARSE.replace(fill=math.nan),)))
    (back,) = parse_source(text, "nan.py")
    assert math.isnan(back.buffers[0].fill)


# -- position level --------------------------------------------------------------------------

J_INDPTR = SparseBuffer("J_indptr", PTR, (I,), int32, extra_storage=1)
J_INDICES = SparseBuffer("idx", IDX, (I, J), int32)  # a buffer that has the name of its handle


def pos(body):
    return PosFunc("h", HANDLES, (I, J), (J_INDPTR, J_INDICES, SPARSE), body)


@pytest.mark.parametrize("shape", [(), (ONE, Cast(N, int64))])
def test_a_local_array_of_any_shape_parses_back(shape):
    check(pos(Alloc(Buffer("L", None, shape, float32, "local"), Evaluate(ONE))))


def test_a_block_with_all_its_parts_parses_back():
    iters = (BlockIter(i, Cast(M, int64), k), BlockIter(j, const(8), BinOp("+", k, ONE), "R"))
    low, extent = BinOp("+", i, ONE), BinOp("-", j, BinOp("-", i, j))
    reads = (
        Region(SPARSE, (i, low), (ONE, extent)),
        Region(SPARSE, (ZERO, BinOp("%", i, j)), (Cast(N, int64), BinOp("%", i, j))),
        Region(SPARSE, (None, low), (None, ONE)),
        Region(SPARSE, (Load(J_INDPTR, (i,)), i), (j, const(1, int64))),
    )
    writes = (Region(SPARSE, (i, ZERO), (ONE, ONE)),)
    body = Store(SPARSE, (None, j), Load(SPARSE, (i, j)))
    init = Store(SPARSE, (i, j), const(0, float32))
    block = Block("b", iters, reads, writes, init, body, BinOp("<", i, j), (("sparse", True),))
    text = check(pos(For(k, ZERO, ONE, block)))
    assert "S[i, i + 1 : i + 1 + (j - (i - j))]" in text
    check(pos(Block("", (), (), (), None, Seq(()))))


def test_a_merge_binds_its_coordinate_and_positions_and_parses_back():
    p, q = Var("p", int64), Var("p", int64)
    cursors = (
        Cursor(p, J_INDICES, Cast(Load(J_INDPTR, (i,)), int64), Cast(N, int64)),
        Cursor(q, None, ZERO, Cast(N, int64)),
    )
    cases = (Case((True, True), Evaluate(q)), Case((False, True), Seq(())))
    text = check(pos(For(i, ZERO, ONE, Merge("union", j, cursors, cases))))
    assert "as [j, p, p_1]:" in text
    assert "with T.case(0, 1):" in text


def test_a_buffer_takes_over_the_name_of_its_handle_even_if_others_share_the_handle():
    again = SparseBuffer("again", IDX, (I, J), int32)
    check(PosFunc("h", HANDLES, (I, J), (J_INDICES, again), Seq(())))


# -- modules ---------------------------------------------------------------------------------


def _module():
    c, z = Var("c", handle), Var("Z_indptr", handle)
    source = CoordFunc("add", (c, M), (I,), (SparseBuffer("C", c, (I,), float32),), Seq(()))
    count = PosFunc("add", (M, z), (), (Buffer("zp", z, (M,), int32),), Seq(()))
    indptr = Buffer("Z_indptr", z, (BinOp("+", Cast(M, int64), ONE),), int32)
    size = Cast(Load(indptr, (M,)), int64)
    values = Buffer("c", c, (size,), float32)
    host = (HostAlloc(indptr), Launch("add"), Scan(indptr), HostAlloc(values, -1.5))
    return Module(source, (count,), (*host, Launch("add"), Return((indptr, values))))


def test_a_module_prints_as_a_class_that_parses_back():
    module = _module()
    text = print_module(module)
    (back,) = parse_source(text, "module.py")
    assert structural_equal(back, module)
    assert print_program(back) == text
    assert 'c = T.host_alloc(Z_indptr[m], "float32", fill=-1.5)' in text


def test_a_module_of_its_source_alone_prints_it_once():
    func = coord(Seq(()))
    module = Module(func, (func,), (Launch("g"), Launch("g")))
    text = print_program(module)
    assert text.count("@T.prim_func") == 1
    assert structural_equal(parse_source(text, "once.py")[0], module)


def test_a_module_with_an_empty_host_program_parses_back():
    func = coord(Seq(()))
    module = Module(func, (func,), ())
    assert structural_equal(parse_source(print_program(module), "empty.py")[0], module)


def test_a_single_module_prints_as_its_function():
    func = coord(Seq(()))
    assert print_program(single(func)) == print_func(func)


def test_an_expression_in_a_message_uses_the_names_of_its_variables():
    assert print_expr(BinOp("+", Load(A, (X,)), Cast(X, float32))) == "A[x_int32] + x_int32"


def test_script_is_what_show_writes(capsys):
    func = coord(Seq(()))
    func.show()
    assert capsys.readouterr().out == func.script() == print_func(func)


def test_show_colours_on_a_terminal(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    coord(Seq(())).show()
    written = capsys.readouterr().out
    assert "\x1b[" in written
    assert re.sub(r"\x1b\[[\d;]*m", "", written) == coord(Seq(())).script()


def test_specialize_by_name_or_parameter_fixes_a_size():
    func = coord(Seq(()))
    for key in ("m", func.params[6]):
        fixed = func.specialize({key: 3})
        assert M not in fixed.params
        assert "I = T.dense_fixed(T.int32(3))" in check(fixed)


def test_promotion_of_every_pair_of_numbers_is_what_the_parser_does():
    numbers = [t for t in SCALARS if t != bool_]
    for a, b in itertools.product(numbers, numbers):
        common = promote(a, b)
        sides = (v if v.type == common else Cast(v, common) for v in (SCALARS[a], SCALARS[b]))
        assert spelled(BinOp("+", *sides)) == f"x_{a} + x_{b}"
