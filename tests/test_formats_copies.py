"""Copies into the parts of a format, and functions with and without them."""

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp.errors import ArgumentError
from spcomp.ir.interpret.program import interpret
from spcomp.ir.module import single
from spcomp.ir.printer.program import print_program
from spcomp.ir.structural import structural_equal
from spcomp.ir.verify.program import verify
from spcomp.passes.decompose.decompose_formats import format_decompose
from spcomp.passes.decompose.preprocess import (
    extract_preprocess,
    remove_preprocess,
    remove_unused_args,
    specialize_buffer,
)
from spcomp.script.parse import parse_source
from tests.format_helpers import HEADER, parse, program
from tests.test_formats_decompose import ELL, block_rule, ell_rule, iterations

CSR = sps.csr_array(np.array([[0, 5, 0], [1, 0, 2], [0, 0, 0], [0, 3, 0]], np.float32))
BUCKETS = {
    1: {"rows_indptr": [0, 2], "rows_indices": [0, 3], "cols": [1, 1]},
    2: {"rows_indptr": [0, 1], "rows_indices": [1], "cols": [0, 2]},
}


def bucket_rules():
    """One rule per width, of one description with the width fixed."""
    desc = parse(ELL)
    return [ell_rule(f"w{w}", new_format_desc=desc.specialize({"width": w})) for w in BUCKETS]


def arguments(dense, out):
    """What the decomposed program takes, but for the values of the parts."""
    args = {"a": CSR.data, "indptr": CSR.indptr, "indices": CSR.indices, "nnz": CSR.nnz}
    args |= {"b": dense.reshape(-1), "c": out, "m": 4, "n": 3, "feat": 2}
    for width, arrays in BUCKETS.items():
        args |= {f"{name}_w{width}": np.array(v, np.int32) for name, v in arrays.items()}
        count = len(arrays["rows_indices"])
        args |= {f"m_w{width}": 4, f"n_w{width}": 3, f"count_w{width}": count}
        args[f"a_w{width}"] = np.full(count * width, 9, np.float32)
    return args


def taken(func, args):
    """The arguments that *func* has parameters for."""
    return {param.name: args[param.name] for param in func.params}


def run(func, args, *, compiled):
    """Run *func* on *args*, as the interpreter does or compiled."""
    if compiled:
        spcomp.compile(func)(*taken(func, args).values())
    else:
        interpret(func, taken(func, args))


def test_copies_come_first_then_the_init_then_one_iteration_per_rule():
    made = format_decompose(program("spmv"), bucket_rules())
    names = ["rewrite_A_w1", "rewrite_A_w2", "f_init", "f_w1", "f_w2"]
    found = iterations(made)
    assert list(found) == names
    assert [dict(it.attrs).get("preprocess") for it in found.values()] == [True, True, *[None] * 3]
    without = format_decompose(program("spmv"), bucket_rules(), include_format_rewrite_blks=False)
    assert list(iterations(without)) == names[2:]


def test_parameters_of_the_rules_follow_in_order_and_are_their_own():
    func = program("spmv")
    made = format_decompose(func, bucket_rules())
    own = ["a", "rows_indptr", "rows_indices", "cols", "m", "n", "count"]
    names = [param.name for param in func.params]
    names += [f"{name}_w{width}" for width in (1, 2) for name in own]
    assert [param.name for param in made.params] == names
    assert remove_preprocess(made).params == made.params


@pytest.mark.parametrize("compiled", [False, True], ids=["interpreted", "compiled"])
def test_copies_fill_the_parts_where_their_structure_is_given(compiled):
    made = format_decompose(program("spmv"), bucket_rules())
    dense, out = np.arange(6, dtype=np.float32).reshape(3, 2), np.full(8, 7, np.float32)
    args = arguments(dense, out)
    run(extract_preprocess(made), args, compiled=compiled)
    assert args["a_w1"].tolist() == [5, 3]
    assert args["a_w2"].tolist() == [1, 2]
    assert out.tolist() == [7] * 8
    run(remove_unused_args(remove_preprocess(made)), args, compiled=compiled)
    np.testing.assert_array_equal(out.reshape(4, 2), CSR @ dense)


@pytest.mark.parametrize("compiled", [False, True], ids=["interpreted", "compiled"])
def test_a_program_with_its_copies_computes_all_at_once(compiled):
    made = format_decompose(program("spmv"), bucket_rules())
    dense, out = np.arange(6, dtype=np.float32).reshape(3, 2), np.full(8, 7, np.float32)
    run(made, arguments(dense, out), compiled=compiled)
    np.testing.assert_array_equal(out.reshape(4, 2), CSR @ dense)


def test_what_is_padded_is_copied_as_zero():
    made = extract_preprocess(format_decompose(program("spmv"), [block_rule()]))
    args = {"a": CSR.data, "indptr": CSR.indptr, "indices": CSR.indices, "nnz": CSR.nnz}
    args |= {"a_bsr": np.full(12, 9, np.float32), "indptr_bsr": np.array([0, 1, 2], np.int32)}
    args |= {"indices_bsr": np.zeros(2, np.int32), "m": 4, "n": 3}
    args |= {"mb_bsr": 2, "nb_bsr": 1, "nnzb_bsr": 2}
    interpret(made, taken(made, args))
    assert args["a_bsr"].tolist() == [0, 5, 0, 1, 0, 2, 0, 0, 0, 0, 3, 0]


def test_all_of_them_are_programs_that_print_and_parse():
    made = format_decompose(program("spmv"), bucket_rules())
    for func in (made, extract_preprocess(made), remove_preprocess(made), remove_unused_args(made)):
        verify(func, "format_decompose")
        (back,) = parse_source(print_program(func), "f.py")
        assert structural_equal(back, func)
    used = {p.name for p in remove_unused_args(remove_preprocess(made)).params}
    assert not {"a", "indptr", "indices", "nnz"} & used
    assert {p.name for p in extract_preprocess(made).params}.isdisjoint({"b", "c", "feat"})


def test_a_module_is_decomposed_as_its_function_is():
    made = format_decompose(single(program("spmv")), bucket_rules())
    assert list(iterations(made["main"]))[-1] == "f_w2"


def test_what_preprocessing_fills_in_allocated_memory_becomes_a_parameter():
    source = (
        HEADER
        + """
    C = T.match_sparse_buffer(c, (I,), "float32")
    W = T.alloc_sparse_buffer((I,), "float32")
    with T.sp_iter([I], "S", "prepare") as [i]:
        T.sp_iter_attr({"preprocess": True})
        W[i] = 2.0
    with T.sp_iter([I], "S", "f") as [i]:
        C[i] = W[i]
"""
    )
    func = parse(source)
    made = remove_unused_args(remove_preprocess(func))
    verify(made, "remove_preprocess")
    assert [param.name for param in made.params] == ["c", "m", "W_ptr"]
    out = np.zeros(3, np.float32)
    interpret(made, {"c": out, "m": 3, "W_ptr": np.array([4, 5, 6], np.float32)})
    assert out.tolist() == [4, 5, 6]


def test_a_program_without_preprocessing_has_none_to_extract():
    with pytest.raises(ArgumentError, match="f has no preprocessing"):
        extract_preprocess(program("spmv"))


def test_a_buffer_is_computed_from_its_indices():
    sch = spcomp.Schedule(program("spmv")).lower_sparse_iter()
    made = specialize_buffer(sch.func, "J_indices", lambda _, p: p * 2)
    verify(made, "specialize_buffer")
    assert "J_indices" not in [buffer.name for buffer in made.buffers]
    args = {"a": np.ones(3, np.float32), "b": np.arange(8, dtype=np.float32)}
    args |= {"c": np.zeros(2, np.float32), "indptr": np.array([0, 3], np.int32)}
    args |= {"indices": np.zeros(3, np.int32), "m": 1, "n": 8, "feat": 1, "nnz": 3}
    args["c"] = np.zeros(1, np.float32)
    interpret(made, taken(made, args))
    assert args["c"].tolist() == [0 + 2 + 4]


@pytest.mark.parametrize(
    ("name", "idx_map", "message"),
    [
        ("Z", lambda i: i, "f has no buffer 'Z'"),
        ("C", lambda i, k: i + k, "cannot specialize C, it is written"),
        ("B", lambda i: i, "cannot specialize B, it is read at 2 indices"),
        ("B", lambda i, k: (i, k), "idx_map gives 2 values, expected 1"),
    ],
)
def test_a_buffer_that_is_used_otherwise_is_not_specialized(name, idx_map, message):
    with pytest.raises(ArgumentError, match=message):
        specialize_buffer(program("spmv"), name, idx_map)


@pytest.mark.parametrize("compiled", [False, True], ids=["interpreted", "compiled"])
def test_blocks_that_reach_over_the_edge_are_padding_there(compiled):
    made = remove_unused_args(format_decompose(program("spmv"), [block_rule()], False))
    csr = sps.csr_array(np.arange(35).reshape(5, 7) % 3).astype(np.float32)
    bsr = sps.csr_array(np.pad(csr.toarray(), ((0, 1), (0, 2)))).tobsr((2, 3))
    dense, out = np.arange(14, dtype=np.float32).reshape(7, 2), np.full(10, 7, np.float32)
    args = {"b": dense.reshape(-1), "c": out, "m": 5, "n": 7, "feat": 2}
    args |= {"a_bsr": bsr.data.reshape(-1), "indptr_bsr": bsr.indptr, "indices_bsr": bsr.indices}
    args |= {"mb_bsr": 3, "nb_bsr": 3, "nnzb_bsr": len(bsr.indices)}
    run(made, args, compiled=compiled)
    np.testing.assert_array_equal(out.reshape(5, 2), csr @ dense)
