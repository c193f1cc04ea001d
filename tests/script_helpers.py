"""What the tests of the script language share: a function to fill in, and the error check."""

from __future__ import annotations

import pytest

from spcomp.errors import ScriptError, SpcompError
from spcomp.ir.stmt import Evaluate
from spcomp.ir.structural import structural_equal
from spcomp.script.parse import parse_source
from tests.layers import reparsed

IMPORT = "from spcomp import script as T\n"
HEAD = """
@T.prim_func
def f(a: T.handle, b: T.handle, ptr: T.handle, idx: T.handle, m: T.int32, n: T.int32,
      nnz: T.int32, w: T.float32, big: T.int64, ok: T.bool) -> None:
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (n, nnz), (ptr, idx))
    N = T.dense_fixed(n)
    A = T.match_sparse_buffer(a, (I, J), "float32")
    B = T.match_buffer(b, (n,), "float32")
"""


def body(*lines, head=HEAD):
    """Return the text of a file with the function *head*, *lines* in it."""
    return IMPORT + head + "".join(f"    {line}\n" for line in lines)


def parse(*lines, head=HEAD):
    """Return the function *head* with *lines* in it, having checked that it prints back."""
    (func,) = parse_source(body(*lines, head=head), "test.py")
    assert structural_equal(reparsed(func, "printed"), func)
    return func


def statement(*lines):
    """Return what *lines* are as the body of a function."""
    return parse(*lines).body


def value(text):
    """Return the expression *text*."""
    stmt = statement(f"T.evaluate({text})")
    assert isinstance(stmt, Evaluate)
    return stmt.value


def cases(*rows):
    """Parametrise by rows of text, message and hint."""
    ids = [row[1] for row in rows]
    return pytest.mark.parametrize(("text", "message", "hint"), rows, ids=ids)


def check_error(text, message, kind=ScriptError, hint=""):
    """Assert that *text* is refused with *message* at its ``«``."""
    before, mark, after = text.partition("«")
    assert mark
    line, col = before.count("\n") + 1, len(before) - before.rfind("\n") - 1
    with pytest.raises(SpcompError) as caught:
        parse_source(before + after, "wrong.py")
    error = caught.value
    assert type(error) is kind
    assert error.message == message
    assert (error.span.file, error.span.line, error.span.col) == ("wrong.py", line, col)
    assert hint in error.hint
    caret = str(error).splitlines()[2]
    assert caret.index("^") == len(f"{line:>5} | ") + col
    return error
