"""While parsing: macros, statements that several scripts share, put in place of their calls."""

from __future__ import annotations

import ast
import inspect
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from spcomp.errors import SpcompError
from spcomp.ir.expr import Const, Var
from spcomp.ir.stmt import Let, Seq
from spcomp.script.source import Macro, names_around, read_function

if TYPE_CHECKING:
    from spcomp.ir.stmt import Stmt
    from spcomp.script.parse_stmt import Statements


def expand(st: Statements, macro: Macro, call: ast.Call) -> Stmt:
    """Return the statements of *macro* with the arguments of *call* for its parameters.

    Names of scripts and Python values go in as they are, anything else is computed once, before. A
    name of the macro means what it means where that is defined. Raises ScriptError.
    """
    outer, frame = names_around(macro.function), dict[str, Any]()
    lets: list[Let] = []
    for name, arg in _arguments(st, macro, call).items():
        binding = st.ctx.find(arg.id) if isinstance(arg, ast.Name) else None
        if binding is not None:
            frame[name] = binding
            continue
        text = arg.value if isinstance(arg, ast.Constant) else st.ctx.python(arg)
        value = None if isinstance(text, str) else st.ex.value(arg)
        if value is None:
            outer[name] = text
        elif isinstance(value.expr, Const) and value.weak:
            outer[name] = value.expr.value
        else:
            span, expr = st.ctx.span(arg), st.ex.expr(arg)
            frame[name] = var = Var(name, expr.dtype, span=span)
            lets.append(Let(var, expr, Seq(()), span=span))
    source, node = _read(macro.function)
    try:
        with st.ctx.inside(source, outer, frame):
            body = st.block(node.body)
    except SpcompError as error:
        where = st.ctx.span(call)
        error.add_note(f"in the macro {node.name}, called at {where.file}:{where.line}")
        raise
    for let in reversed(lets):
        body = let.replace(body=body)
    return body


_read = lru_cache(maxsize=64)(read_function)


def _arguments(st: Statements, macro: Macro, call: ast.Call) -> dict[str, ast.expr]:
    keywords = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
    name, signature = macro.function.__name__, inspect.signature(macro.function)
    plain = len(keywords) == len(call.keywords) and not any(
        isinstance(arg, ast.Starred) for arg in call.args
    )
    if not plain or any(p.kind != p.POSITIONAL_OR_KEYWORD for p in signature.parameters.values()):
        raise st.ctx.error(call, f"the macro {name} and its calls have plain arguments only")
    try:
        return signature.bind(*call.args, **keywords).arguments
    except TypeError as error:
        names = ", ".join(signature.parameters)
        raise st.ctx.error(call, f"{name}: {error}", hint=f"{name}({names})") from error
