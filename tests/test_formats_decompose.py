"""The pass that splits iterations by formats: what it makes of a program, and what it refuses."""

import re

import numpy as np
import pytest
import scipy.sparse as sps

from spcomp.errors import FormatError
from spcomp.formats import FormatRewriteRule, sliced_diagonal
from spcomp.ir.analysis.sizes import evaluate
from spcomp.ir.axis import SparseBuffer
from spcomp.ir.coordinate import SpIter
from spcomp.ir.interpret.program import interpret
from spcomp.ir.module import single
from spcomp.ir.printer.program import print_program
from spcomp.ir.structural import structural_equal
from spcomp.ir.verify.program import verify
from spcomp.ir.visitor import walk
from spcomp.passes.base import Pipeline
from spcomp.passes.decompose.decompose_formats import (
    DecomposeFormats,
    decompose,
    format_decompose,
    without_unused,
)
from spcomp.script.parse import parse_source
from spcomp.tensors.parts.sliced import sliced_diagonal as convert
from tests.corpus_base import fresh
from tests.format_helpers import BODIES, HEADER, parse, program
from tests.programs import PROGRAMS

ELL = """from spcomp import script as T

@T.prim_func
def ell(a: T.handle, rows_indptr: T.handle, rows_indices: T.handle, cols: T.handle,
        m: T.int32, n: T.int32, count: T.int32, width: T.int32) -> None:
    O = T.dense_fixed(1)
    I = T.sparse_variable(O, (m, count), (rows_indptr, rows_indices), "int32")
    J = T.sparse_fixed(I, (n, width), cols, "int32")
    A = T.match_sparse_buffer(a, (O, I, J), "float32")
    T.evaluate(0)
"""
BLOCKS = """from spcomp import script as T

@T.prim_func
def blocks(a: T.handle, indptr: T.handle, indices: T.handle,
           mb: T.int32, nb: T.int32, nnzb: T.int32) -> None:
    IO = T.dense_fixed(mb)
    JO = T.sparse_variable(IO, (nb, nnzb), (indptr, indices), "int32")
    II = T.dense_fixed(2)
    JI = T.dense_fixed(3)
    A = T.match_sparse_buffer(a, (IO, JO, II, JI), "float32")
    T.evaluate(0)
"""


def ell_rule(name, **changes):
    """The rule for a bucket of rows of one width, as SparseTIR has it."""
    fields = {
        "name": name,
        "new_format_desc": parse(ELL),
        "buffers_to_rewrite": ["A"],
        "axes_before_rewrite": ["I", "J"],
        "axes_after_rewrite": ["O", "I", "J"],
        "axis_map": {"I": ["O", "I"], "J": ["J"]},
        "idx_map": lambda i, j: (0, i, j),
        "inv_idx_map": lambda o, i, j: (i, j),
    }
    return FormatRewriteRule(**(fields | changes))


def block_rule(**changes):
    """The rule for blocks of 2 x 3, padded."""
    fields = {
        "name": "bsr",
        "new_format_desc": parse(BLOCKS),
        "buffers_to_rewrite": ["A"],
        "axes_before_rewrite": ["I", "J"],
        "axes_after_rewrite": ["IO", "JO", "II", "JI"],
        "axis_map": {"I": ["IO", "II"], "J": ["JO", "JI"]},
        "idx_map": lambda i, j: (i // 2, j // 3, i % 2, j % 3),
        "inv_idx_map": lambda io, jo, ii, ji: (io * 2 + ii, jo * 3 + ji),
        "padded": True,
    }
    return FormatRewriteRule(**(fields | changes))


def rules_of(func):
    """The rules of sliced_diagonal(4) for the buffer A of *func*."""
    (buffer,) = [buffer for buffer in func.buffers if buffer.name == "A"]
    return sliced_diagonal(4).rules(buffer)


def iterations(func):
    """The sp_iters of *func*, by name."""
    return {node.name: node for node in walk(func.body) if isinstance(node, SpIter)}


@pytest.mark.parametrize("name", BODIES)
def test_a_decomposed_program_is_well_formed_and_prints_what_parses_back(name):
    func = program(name)
    whole = decompose(func, rules_of(func)).func
    made = without_unused(whole, func)
    for one in (whole, made):
        verify(one, "decompose_formats")
        (back,) = parse_source(print_program(one), "f.py")
        assert structural_equal(back, one)
    assert [p.name for p in whole.params][: len(func.params)] == [p.name for p in func.params]
    assert not {"a", "indptr", "indices", "nnz"} & {p.name for p in made.params}
    assert "J" not in {axis.name for axis in made.axes}


def test_an_axis_that_nothing_uses_keeps_those_above_it():
    """The rows are replaced by buckets, but another axis is declared below them."""
    body = """
    E = T.sparse_variable(I, (n, nnz), (indptr, indices), "int32")
    C = T.match_sparse_buffer(c, (I, J), "float32")
    with T.sp_iter([I, J], "SS", "f") as [i, j]:
        C[i, j] = A[i, j] * 2.0
"""
    func = parse(HEADER + body)
    rule = ell_rule("w2")
    made = without_unused(decompose(func, [rule]).func, func)
    verify(single(made), "without_unused")
    assert {"I", "E"} <= {axis.name for axis in made.axes}


def test_the_first_part_initialises_what_its_slices_cover_and_the_tail_is_apart():
    func = program("spmv")
    found = iterations(decompose(func, rules_of(func)).func)
    assert list(found) == ["f_init", "f_diagonal", "f_rest"]
    assert [domain.name for domain in found["f_init"].domains] == ["I_tail", "K"]
    assert found["f_diagonal"].init is not None
    assert found["f_diagonal"].kinds == "SRSS"
    assert found["f_rest"].init is None


def test_no_tail_is_left_where_slices_fit():
    func = parse(HEADER.replace("m: T.int32, ", "").replace("(m)", "(32)") + BODIES["spmv"])
    found = iterations(decompose(func, rules_of(func)).func)
    assert list(found) == ["f_diagonal", "f_rest"]


def test_an_init_over_a_stored_axis_runs_over_its_full_length():
    func = program("transposed")
    found = iterations(decompose(func, rules_of(func)).func)
    assert [domain.name for domain in found["f_init"].domains] == ["J_all", "K"]
    assert found["f_diagonal"].init is None
    assert found["f_diagonal"].kinds == "RRRS"  # none of its axes alone tells columns apart


def test_rows_in_buckets_of_one_width_compute_what_csr_does():
    func = program("spmv")
    rng = np.random.default_rng(2)
    csr = sps.csr_array((rng.random((12, 9)) < 0.3) * rng.integers(1, 5, (12, 9)) * 1.0)
    lengths, b = np.diff(csr.indptr), rng.integers(-3, 4, (9, 2)).astype(np.float32)
    rules, args = (
        [],
        {"b": b.reshape(-1), "c": np.full(24, 7, np.float32), "m": 12, "n": 9, "feat": 2},
    )
    for width in np.unique(lengths):
        rules.append(ell_rule(f"w{width}"))
        rows = np.flatnonzero(lengths == width)
        at = (csr.indptr[rows][:, None] + np.arange(width)).reshape(-1)
        arrays = (csr.data[at].astype(np.float32), [0, len(rows)], rows, csr.indices[at])
        named = dict(zip(("a", "rows_indptr", "rows_indices", "cols"), arrays, strict=True))
        named |= {"m": 12, "n": 9, "count": len(rows), "width": int(width)}
        for name, value in named.items():
            array = value if name == "a" or np.ndim(value) == 0 else np.asarray(value, np.int32)
            args[f"{name}_w{width}"] = array
    made = without_unused(decompose(func, rules).func, func)
    interpret(made, args)
    np.testing.assert_array_equal(args["c"].reshape(12, 2), csr @ b)


@pytest.mark.parametrize("name", ["spmv", "max", "transposed"])
def test_blocks_that_are_padded_compute_what_csr_does(name):
    func = program(name)
    rng = np.random.default_rng(4)
    csr = sps.csr_array((rng.random((8, 9)) < 0.3) * rng.integers(1, 5, (8, 9)) * 1.0)
    csr, bsr = csr.astype(np.float32), csr.tobsr((2, 3)).astype(np.float32)
    b = rng.integers(-3, 4, (8 if name == "transposed" else 9, 2)).astype(np.float32)
    outs = [np.full(2 * (9 if name == "transposed" else 8), 7, np.float32) for _ in range(2)]
    common = {"b": b.reshape(-1), "m": 8, "n": 9, "feat": 2}
    pattern = {"a": csr.data, "indptr": csr.indptr, "indices": csr.indices, "nnz": csr.nnz}
    interpret(func, {**common, **pattern, "c": outs[0]})
    made = without_unused(decompose(func, [block_rule()]).func, func)
    blocks = {"a_bsr": bsr.data.reshape(-1), "indptr_bsr": bsr.indptr, "indices_bsr": bsr.indices}
    sizes = {"mb_bsr": 4, "nb_bsr": 3, "nnzb_bsr": len(bsr.indices)}
    interpret(made, {**common, **blocks, **sizes, "c": outs[1]})
    np.testing.assert_array_equal(outs[1], outs[0])


def decomposable():
    """The programs of the corpus with a matrix that can be stored in segments, and its name."""
    found = []
    for one in PROGRAMS:
        func = one.build(one.dtypes[0])
        for buffer in [
            b for b in func.buffers if isinstance(b, SparseBuffer) and not one.assembles
        ]:
            try:
                decompose(func, sliced_diagonal(2).rules(buffer))
            except FormatError:
                continue
            found.append((one, buffer.name))
    return found


@pytest.mark.parametrize(
    ("one", "name"),
    decomposable(),
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_programs_of_the_corpus_keep_their_meaning(one, name):
    func = one.build(one.dtypes[0])
    (buffer,) = [buffer for buffer in func.buffers if buffer.name == name]
    layout, axis = sliced_diagonal(2, 0.5), buffer.axes[1]
    done = decompose(func, layout.rules(buffer))
    made = without_unused(done.func, func)
    if done.old.beside:  # these are copied into parts, and back
        made = format_decompose(func, layout.rules(buffer))
    verify(made, "decompose_formats")
    (back,) = parse_source(print_program(made), "f.py")
    assert structural_equal(back, made)
    for case in one.cases:
        inputs = one.inputs(case, one.dtypes[0])
        arrays = [inputs[var.name] for var in (axis.indptr, axis.indices, buffer.data)]
        shape = tuple(int(evaluate(axis.length, inputs)) for axis in buffer.axes)
        args = fresh(inputs)
        for part in done.parts:
            stored = convert(layout, shape, arrays, buffer.dtype)[part.rule.name]
            for key, var in part.params.items():
                of, _, size = key.rpartition("_")
                array = stored.get(f"{of}_indices", stored["values"])
                is_size = size in ("count", "width")
                args[var.name] = len(array) if is_size else stored.get(key, array)
            for new in part.beside.values():
                if new.data is not None:
                    args[new.data.name] = np.empty(stored["values"].size, new.dtype.numpy_name)
        interpret(made, {param.name: args[param.name] for param in made.params})
        one.check(inputs, args, one.dtypes[0], case)


def test_the_pass_stands_in_a_pipeline():
    func = program("spmv")
    step = DecomposeFormats((ell_rule("x"), ell_rule("y")))
    module = Pipeline((step,)).run(single(func))
    assert list(iterations(module.funcs[0])) == ["f_init", "f_x", "f_y"]
    assert module.source is module.funcs[0]


def test_names_that_are_taken_get_numbers():
    taken = HEADER.replace("feat: T.int32", "feat: T.int32, a_x: T.int32") + BODIES["spmv"]
    made = decompose(
        parse(taken.replace("N = T", "A_x = T").replace("(N,", "(A_x,")), [ell_rule("x")]
    )
    verify(made.func, "decompose_formats")
    (part,) = made.parts
    assert part.params["a"].name == "a_x_1"
    assert part.buffers["A"].name == "A_x_1"


REFUSED_PROGRAMS = {
    "one sp_iter": """
    C = T.match_sparse_buffer(c, (I,), "float32")
    with T.sp_iter([I], "S", "f") as [i]:
        with T.sp_iter([J], "R", "g") as [j]:
            C[i] = C[i] + A[i, j]
""",
    "not one step of a reduction": """
    C = T.match_sparse_buffer(c, (I,), "float32")
    with T.sp_iter([I, J], "SR", "f") as [i, j]:
        C[i] = A[i, j]
""",
    "reads what one of them writes": """
    B = T.match_sparse_buffer(b, (I,), "float32")
    C = T.match_sparse_buffer(c, (I,), "float32")
    with T.sp_iter([I, J], "SR", "f") as [i, j]:
        C[i] = C[i] + A[i, j]
        B[i] = B[i] + C[i]
""",
    "it writes A": """
    with T.sp_iter([I, J], "SS", "f") as [i, j]:
        A[i, j] = A[i, j] * 2.0
""",
    "C lies along J too": """
    P = T.dense_variable(J, (feat, nnz), b)
    C = T.match_sparse_buffer(c, (I, J, P), "float32")
    with T.sp_iter([I, J], "SS", "f") as [i, j]:
        C[i, j, 0] = A[i, j] * 2.0
""",
    "C is decomposed, but used other than": """
    C = T.match_sparse_buffer(c, (I, J), "float32")
    with T.sp_iter([I, J], "SS", "f") as [i, j]:
        C[i, j] = A[i, j] * 2.0
    with T.sp_iter([I], "S", "g") as [i]:
        C[i, i] = 0.0
""",
    "one statement of its init writes what lies apart": """
    B = T.match_sparse_buffer(b, (I,), "float32")
    C = T.match_sparse_buffer(c, (I, J), "float32")
    with T.sp_iter([I, J], "SS", "f") as [i, j]:
        with T.init():
            if i < 2:
                B[i] = 0.0
                C[i, j] = 0.0
        C[i, j] = C[i, j] + A[i, j] * 2.0
""",
    "used other than at the element that is iterated": """
    C = T.match_sparse_buffer(c, (I,), "float32")
    with T.sp_iter([I, J], "SR", "f") as [i, j]:
        C[i] = C[i] + A[i, 0]
""",
    "A is decomposed, but used other than": """
    C = T.match_sparse_buffer(c, (I,), "float32")
    with T.sp_iter([I], "S", "f") as [i]:
        C[i] = A[i, i]
""",
    "is not iterated on its own": """
    C = T.match_sparse_buffer(c, (I,), "float32")
    with T.sp_iter([T.flatten(I, J)], "R", "f") as [p]:
        C[0] = C[0] + 1.0
""",
}


@pytest.mark.parametrize("message", REFUSED_PROGRAMS)
def test_a_program_that_parts_cannot_serve_is_refused(message):
    func = parse(HEADER + REFUSED_PROGRAMS[message])
    with pytest.raises(FormatError, match=re.escape(message)):
        decompose(func, rules_of(func))


REFUSED_RULES = {
    "declares no axis 'Q'": {"axes_after_rewrite": ["O", "I", "Q"]},
    "declares no buffer 'Z'": {"buffers_to_rewrite": ["Z"]},
    "axis_map is for I": {"axis_map": {"I": ["I"]}},
    "inv_idx_map maps 2 to 2": {"inv_idx_map": lambda i, j: (i, j)},
    "idx_map maps 1 to 1": {"idx_map": lambda i: i},
    "has A along O, I, J": {"axes_after_rewrite": ["I", "J"]},
}


@pytest.mark.parametrize("message", REFUSED_RULES)
def test_a_rule_that_does_not_fit_its_description_is_refused(message):
    with pytest.raises(FormatError, match=message):
        ell_rule("x", **REFUSED_RULES[message])


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ([], "no rules are given"),
        ([ell_rule("x"), ell_rule("x")], "another rule has this name"),
        ([ell_rule("x", idx_map=lambda i, j: (0, j, i))], "idx_map is not proved to undo"),
        ([ell_rule("x", idx_map=lambda i, j: (i, i, j))], "idx_map is not proved to undo"),
        (
            [ell_rule("x", axes_before_rewrite=["I", "M"], axis_map={"I": ["I"], "M": ["J"]})],
            "f has no axis 'M'",
        ),
        (
            [ell_rule("x", axes_before_rewrite=["I", "K"], axis_map={"I": ["I"], "K": ["J"]})],
            "A lies along I, J",
        ),
        ([ell_rule("x"), block_rule(axes_before_rewrite=["J", "I"])], "its axes_before_rewrite"),
    ],
)
def test_rules_that_do_not_fit_the_program_are_refused(rules, message):
    with pytest.raises(FormatError, match=message):
        decompose(program("spmv"), rules)


WITH_FEATURES = ELL.replace("a: T.handle,", "a: T.handle, p: T.handle,").replace(
    "    T.evaluate(0)",
    """    F = T.dense_fixed(4)
    P = T.match_sparse_buffer(p, (O, I, J, F), "float32")
    T.evaluate(0)""",
)
FEATURES = """from spcomp import script as T

@T.prim_func
def f(a: T.handle, p: T.handle, x: T.handle, y: T.handle, indptr: T.handle, indices: T.handle,
      m: T.int32, n: T.int32, nnz: T.int32) -> None:
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (n, nnz), (indptr, indices), "int32")
    F = T.dense_fixed(4)
    A = T.match_sparse_buffer(a, (I, J), "float32")
    P = T.match_sparse_buffer(p, (I, J, F), "float32")
    X = T.match_sparse_buffer(x, (F,), "float32")
    Y = T.match_sparse_buffer(y, (I,), "float32")
    with T.sp_iter([I, J, F], "SSS", "product") as [i, j, f]:
        P[i, j, f] = A[i, j] * X[f]
    with T.sp_iter([I, J, F], "SRR", "total") as [i, j, f]:
        with T.init():
            Y[i] = 0.0
        Y[i] = Y[i] + P[i, j, f]
"""


def rule_with_features(**changes):
    """The rule that rewrites A along (I, J) and P along (I, J, F) at once."""
    fields = {
        "new_format_desc": parse(WITH_FEATURES),
        "buffers_to_rewrite": ["A", "P"],
        "axes_before_rewrite": ["I", "J", "F"],
        "axes_after_rewrite": ["O", "I", "J", "F"],
        "axis_map": {"I": ["O", "I"], "J": ["J"], "F": ["F"]},
        "idx_map": lambda i, j, f: (0, i, j, f),
        "inv_idx_map": lambda o, i, j, f: (i, j, f),
    }
    return ell_rule("e", **(fields | changes))


def test_a_rule_may_rewrite_buffers_along_further_axes_that_stay_as_they_are():
    rule = rule_with_features()
    core = rule.core()
    assert core.buffers_to_rewrite == ["A"]
    assert core.axes_before_rewrite == ["I", "J"]
    assert core.core() is core
    func = format_decompose(parse(FEATURES), [rule], include_format_rewrite_blks=False)
    assert [p.name for p in func.params if p.name.endswith("_e")][:2] == ["a_e", "p_e"]
    (part,) = (b for b in func.buffers if b.name == "P_e")
    assert [axis.name for axis in part.axes] == ["O_e", "I_e", "J_e", "F"]
    verify(single(func), "decompose_formats")


@pytest.mark.parametrize(
    "changes",
    [
        {"idx_map": lambda i, j, f: (0, i, j, f + 1)},
        {"inv_idx_map": lambda o, i, j, f: (i, j, f + 1)},
        {
            "idx_map": lambda i, j, f: (0, i, j + f, f),
            "inv_idx_map": lambda o, i, j, f: (i, j - f, f),
        },
    ],
    ids=["changed", "not undone", "used by others"],
)
def test_a_further_axis_that_does_not_stay_as_it_is_is_refused(changes):
    with pytest.raises(FormatError, match="rewrites A along O, I, J; P along O, I, J, F"):
        rule_with_features(**changes).core()


def test_a_description_of_another_length_is_refused():
    text = WITH_FEATURES.replace("dense_fixed(4)", "dense_fixed(5)")
    with pytest.raises(FormatError, match="does not declare P along O_e, I_e, J_e, F"):
        decompose(parse(FEATURES), [rule_with_features(new_format_desc=parse(text))])
