"""Python syntax to statements: assignments, loops, branches, and calls as statements."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from spcomp.dtypes import HOLE, int64
from spcomp.ir.access import Load
from spcomp.ir.expr import Expr, const
from spcomp.ir.promotion import Value
from spcomp.ir.stmt import (
    THREADS,
    WARPS,
    Alloc,
    Attrs,
    Barrier,
    Evaluate,
    Fail,
    For,
    If,
    Let,
    LoopKind,
    Prefetch,
    Print,
    Seq,
    Stmt,
    Store,
    While,
    seq,
    template,
)
from spcomp.script import parse_call
from spcomp.script.declare import ALLOCS, AXES, MATCHES, Declarations
from spcomp.script.parse_expr import Expressions
from spcomp.script.scope import Context, describe
from spcomp.script.source import Macro

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from spcomp.errors import Span
    from spcomp.ir.axis import AnyBuffer

_LOOPS: dict[str, LoopKind] = {
    "serial": "serial",
    "parallel": "parallel",
    "vectorized": "vectorized",
    "unroll": "unroll",
    "thread_binding": "bound",
}
_PLACES = {
    "init": "T.sp_iter or T.block",
    "sp_iter_attr": "T.sp_iter",
    **dict.fromkeys(("where", "reads", "writes", "block_attr"), "T.block"),
    **dict.fromkeys(("axis.spatial", "axis.reduce", "axis.remap", "axis.S", "axis.R"), "T.block"),
    "case": "T.merge",
    **dict.fromkeys(("launch", "scan", "trim", "host_alloc", "host_return"), "a T.host function"),
    **dict.fromkeys(("func_attr", "assume_buffer_domain", *AXES, *MATCHES), "the function"),
}
_REFUSED: dict[type[ast.stmt], tuple[str, str]] = {
    ast.Return: ("a script returns nothing", "write the result into a buffer"),
    ast.Break: ("a loop cannot be left early", "use while with a condition"),
    ast.Continue: ("an iteration cannot be cut short", "put the rest under an if"),
    ast.FunctionDef: ("functions cannot be defined in a script", "write its body in place"),
    ast.Assert: ("a script asserts nothing", 'write if not ...: T.fail("message")'),
}


Opener: TypeAlias = "Callable[[Statements, ast.With, ast.Call, ast.expr | None], Stmt]"
Expand: TypeAlias = "Callable[[Statements, Macro, ast.Call], Stmt]"


@dataclass(frozen=True, slots=True)
class Open:
    """A statement whose body is the rest of its list of statements."""

    node: Let | Alloc


class Statements:
    """Parses the statements of one function.

    *openers* parse ``with`` statements, by name; *expand* returns the statements of a macro.
    """

    def __init__(self, ctx: Context, openers: Mapping[str, Opener], expand: Expand) -> None:
        self.ctx, self.openers, self.expand = ctx, openers, expand
        self.ex = Expressions(ctx, parse_call)
        self.declare = Declarations(self.ex)

    def block(self, stmts: Sequence[ast.stmt]) -> Stmt:
        """Return *stmts* in order; names that they bind end with them."""
        with self.ctx.scope():
            parts = [self.statement(stmt) for stmt in stmts]
        return close(parts, self.ctx.span(stmts[0]) if stmts else None)

    def statement(self, node: ast.stmt) -> Stmt | Open | None:
        """Return the statement that *node* spells; None if it does nothing."""
        handler = self._HANDLERS.get(type(node))
        if handler is not None:
            return handler(self, node)
        what = f"a script has no {type(node).__name__.lower()} statement"
        message, hint = _REFUSED.get(type(node), (what, ""))
        raise self.ctx.error(node, message, hint=hint)

    # -- assignments --------------------------------------------------------------------------

    def _assign(self, node: ast.Assign) -> Stmt | Open | None:
        if len(node.targets) > 1:
            raise self.ctx.error(node, "one assignment sets one thing", hint="write two")
        target = node.targets[0]
        if isinstance(target, ast.Subscript):
            return self._store(target, node.value, node)
        name = self.ctx.called(node.value)
        if name in ALLOCS and isinstance(node.value, ast.Call):
            return Open(self.alloc(target, node.value))
        if name in _PLACES:
            raise self.misplaced(name, node.value)
        return self._let(target, self.ex.expr(node.value), node)

    def misplaced(self, name: str, node: ast.AST) -> Exception:
        """Return the error for a call of *name* where it has no meaning."""
        place = _PLACES[name]
        return self.ctx.error(node, f"T.{name} has no meaning here", hint=f"it stands in {place}")

    def _let(self, target: ast.expr, value: Expr, node: ast.stmt) -> Open:
        if isinstance(target, ast.Tuple | ast.List):
            raise self.ctx.error(target, "one assignment binds one name", hint="write one each")
        if isinstance(target, ast.Name) and (old := self.ctx.find(target.id)) is not None:
            raise self.ctx.error(
                target,
                f"{target.id} is {describe(old)} already, and a name keeps its value",
                hint='use a new name, or a buffer: X = T.alloc_buffer((1,), "float32")',
            )
        var = self.ctx.bind_var(target, value.dtype)
        return Open(Let(var, value, Seq(()), span=self.ctx.span(node)))

    def _ann_assign(self, node: ast.AnnAssign) -> Open:
        if node.value is None:
            raise self.ctx.error(node, "a variable needs its value")
        value = self.ex.stored(node.value, self.ctx.element(node.annotation))
        return self._let(node.target, value, node)

    def _aug_assign(self, node: ast.AugAssign) -> Stmt:
        if not isinstance(node.target, ast.Subscript):
            raise self.ctx.error(
                node, "a name keeps its value", hint="use an element of a buffer: A[i] += value"
            )
        buffer, indices = self.ex.access(node.target)
        old = Value(Load(buffer, indices, span=self.ctx.span(node.target)))
        value = self.ex.value(node.value)
        new = self.ex.operator(node.op, old, value, node)
        return self._stored(buffer, indices, new, node)

    def _store(self, target: ast.Subscript, value: ast.expr, node: ast.stmt) -> Stmt:
        buffer, indices = self.ex.access(target)
        return self._stored(buffer, indices, self.ex.value(value), value, node)

    def _stored(
        self,
        buffer: AnyBuffer,
        indices: tuple[Expr | None, ...],
        value: Value,
        where: ast.AST,
        node: ast.stmt | None = None,
    ) -> Store:
        dtype = Load(buffer, indices).dtype
        stored = self.ex.stored_value(value, dtype, where)
        return Store(buffer, indices, stored, span=self.ctx.span(node or where))

    def alloc(self, target: ast.expr, call: ast.Call) -> Alloc:
        """Return the allocation of the buffer *target*, its body still empty."""
        buffer = self.declare.buffer(target, call, self.ctx.arguments(call), None)
        self.ctx.bind(buffer.name, buffer, target)
        return Alloc(buffer, Seq(()), span=self.ctx.span(call))

    # -- control ------------------------------------------------------------------------------

    def _if(self, node: ast.If) -> Stmt | None:
        if (known := self.ex.decided(node.test)) is not None:
            taken = node.body if known else node.orelse
            return self.block(taken) if taken else None
        test, uniform = node.test, self.ctx.called(node.test) == "uniform"
        if uniform and isinstance(test, ast.Call):
            test = self.ctx.arguments(test)["condition"]
        cond = self.ex.condition(test)
        then = self.block(node.body)
        otherwise = self.block(node.orelse) if node.orelse else None
        return If(cond, then, otherwise, uniform, span=self.ctx.span(node))

    def _while(self, node: ast.While) -> Stmt:
        self._no_else(node)
        cond = self.ex.condition(node.test)
        return While(cond, self.block(node.body), span=self.ctx.span(node))

    def _no_else(self, node: ast.While | ast.For) -> None:
        if node.orelse:
            raise self.ctx.error(node.orelse[0], "a loop has no else", hint="write it after")

    def _for(self, node: ast.For) -> Stmt:
        self._no_else(node)
        call, name = node.iter, self.ctx.called(node.iter)
        if isinstance(call, ast.Call):
            if self.ctx.is_builtin(call.func, ("range",)):
                return self._range(node, call)
            if name == "grid":
                return self._grid(node, call)
            if name in _LOOPS:
                return self._loop_call(node, name, call)
        raise self.ctx.error(
            call, "this is nothing to loop over", hint="use range, T.serial, T.parallel, ..."
        )

    def _loop_call(self, node: ast.For, name: str, call: ast.Call) -> Stmt:
        args = self.ctx.arguments(call)
        end = args.get("end")
        if isinstance(end, ast.Constant) and isinstance(end.value, str):
            args["thread"] = args.pop("end")  # T.thread_binding(extent, "threadIdx.x")
        options: dict[str, Any] = {"kind": _LOOPS[name]}
        if name == "thread_binding":
            if "thread" not in args:
                raise self.ctx.error(call, "T.thread_binding needs the name of its thread")
            options["thread"] = thread = self.ctx.text(args["thread"], "the thread")
            if thread not in THREADS:
                hint = f"they are {', '.join(THREADS)}"
                raise self.ctx.error(args["thread"], f"no index {thread!r} of the grid", hint=hint)
        if "annotations" in args:
            options["attrs"] = notes = self.attrs(args["annotations"])
            grain = dict(notes).get("grain", 1)
            if not isinstance(grain, int) or grain < 1:
                raise self.ctx.error(args["annotations"], "grain is an integer from 1")
        return self._loop(node, args["begin"], args.get("end"), node.body, **options)

    def _range(self, node: ast.For, call: ast.Call) -> Stmt:
        if call.keywords or not 1 <= len(call.args) <= 2:
            raise self.ctx.error(
                call, "range takes an end, or a begin and an end", hint="scale the variable"
            )
        begin, end = (*call.args, None)[:2]
        assert begin is not None
        return self._loop(node, begin, end, node.body)

    def _grid(self, node: ast.For, call: ast.Call) -> Stmt:
        extents = self.ctx.arguments(call).get("extents", ())
        targets = node.target.elts if isinstance(node.target, ast.Tuple) else [node.target]
        if len(targets) != len(extents) or not extents:
            raise self.ctx.error(
                node.target, f"{len(targets)} variables for {len(extents)} loops of T.grid"
            )
        zero = const(0).replace(span=self.ctx.span(node.iter))
        with self.ctx.scope():
            ends = [self.ex.count(extent) for extent in extents]
            loop_vars = [self.ctx.bind_var(target, int64) for target in targets]
            self.ctx.loops |= {v: (zero, end) for v, end in zip(loop_vars, ends, strict=True)}
            body = self.block(node.body)
        for var, end in zip(reversed(loop_vars), reversed(ends), strict=True):
            body = For(var, zero, end, body, span=self.ctx.span(node))
        return body

    def _loop(
        self,
        node: ast.For,
        begin: ast.expr,
        end: ast.expr | None,
        body: Sequence[ast.stmt],
        **options: Any,
    ) -> Stmt:
        low: Expr = const(0).replace(span=self.ctx.span(begin))
        if end is not None:
            low = self.ex.count(begin)
        high = self.ex.count(begin if end is None else end)
        with self.ctx.scope():
            var = self.ctx.bind_var(node.target, int64)
            self.ctx.loops[var] = (low, high)
            inner = self.block(body)
        return For(var, low, high, inner, span=self.ctx.span(node), **options)

    def attrs(self, node: ast.expr) -> Attrs:
        """Return the mapping that *node* spells."""
        value = self.literal(node)
        if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
            raise self.ctx.error(node, "attributes are a dict with strings for keys")
        return tuple(value.items())

    def literal(self, node: ast.expr) -> Any:
        """Return the Python value that *node* spells; lists become tuples."""
        match node:
            case ast.Constant():
                return node.value
            case ast.Dict(keys=keys, values=values):
                if None in keys:
                    raise self.ctx.error(node, "** has no meaning here")
                pairs = zip(keys, values, strict=True)
                return {self.literal(k): self.literal(v) for k, v in pairs if k is not None}
            case ast.List(elts=elts) | ast.Tuple(elts=elts):
                return tuple(self.literal(item) for item in elts)
        value = self.ctx.python(node)
        return value if isinstance(value, str) else self.ex.number(node)

    # -- calls that stand alone ---------------------------------------------------------------

    def _expr(self, node: ast.Expr) -> Stmt | None:
        call, name = node.value, self.ctx.called(node.value)
        if isinstance(call, ast.Constant) and isinstance(call.value, str):
            return None  # a docstring or a comment
        if isinstance(call, ast.Call) and isinstance(macro := self.ctx.python(call.func), Macro):
            return self.expand(self, macro, call)
        if name in self._CALLS and isinstance(call, ast.Call):
            return self._CALLS[name](self, self.ctx.arguments(call), call)
        if name in _PLACES:
            raise self.misplaced(name, call)
        raise self.ctx.error(
            node, "the value is not used", hint="store it, or write T.evaluate(value)"
        )

    def _evaluate(self, args: dict[str, Any], call: ast.Call) -> Stmt:
        return Evaluate(self.ex.expr(args["value"]), span=self.ctx.span(call))

    def _fail(self, args: dict[str, Any], call: ast.Call) -> Stmt:
        if "message" not in args:
            raise self.ctx.error(call, "T.fail needs a message")
        return Fail(*template(self._shown(args, "message")), span=self.ctx.span(call))

    def _print(self, args: dict[str, Any], call: ast.Call) -> Stmt:
        return Print(*template(self._shown(args, "parts")), span=self.ctx.span(call))

    def _shown(self, args: dict[str, Any], name: str) -> list[str | Expr]:
        """Return the strings and numbers that the arguments called *name* are."""
        result: list[str | Expr] = []
        for part in args.get(name, ()):
            text = part.value if isinstance(part, ast.Constant) else self.ctx.python(part)
            if isinstance(part, ast.JoinedStr) or (isinstance(text, str) and HOLE in text):
                hint = 'give texts and numbers in turn, without {}: T.print("row", i)'
                raise self.ctx.error(part, "a text is shown as it is written", hint=hint)
            result.append(text if isinstance(text, str) else self.ex.expr(part))
        return result

    def _barrier(self, args: dict[str, Any], call: ast.Call) -> Stmt:
        scope = self.ctx.text(args["scope"], "the scope")
        lanes = int(self.ex.number(args["lanes"])) if "lanes" in args else 0
        if (scope, lanes) != ("shared", 0) and (scope != "warp" or lanes not in WARPS):
            hint = '"shared", or "warp" and a number of lanes: 2, 4, 8, 16 or 32'
            raise self.ctx.error(call, f"nothing waits for {scope!r}, {lanes}", hint=hint)
        return Barrier(lanes, span=self.ctx.span(call))

    def _prefetch(self, args: dict[str, Any], call: ast.Call) -> Stmt:
        buffer, parts = self.ctx.buffer(args["buffer"]), args.get("indices", ())
        self.ex.check_rank(buffer, len(parts), call)
        indices = tuple(self.ex.index(part) for part in parts)
        return Prefetch(buffer, indices, span=self.ctx.span(call))

    def _store_call(self, args: dict[str, Any], call: ast.Call) -> Stmt:
        buffer = self.ctx.buffer(args["buffer"])
        indices = self.ex.indices(buffer, args["index"])
        store = self._stored(buffer, indices, self.ex.value(args["value"]), args["value"], None)
        mask = self.ex.condition(args["mask"]) if "mask" in args else None
        atomic = bool(self.ex.number(args["atomic"])) if "atomic" in args else False
        return store.replace(mask=mask, atomic=atomic, span=self.ctx.span(call))

    # -- with ---------------------------------------------------------------------------------

    def _with(self, node: ast.With) -> Stmt:
        item = node.items[0]
        call, name = item.context_expr, self.ctx.called(item.context_expr)
        if len(node.items) > 1:
            raise self.ctx.error(node.items[1].context_expr, "one with opens one thing")
        if not isinstance(call, ast.Call) or name is None:
            raise self.ctx.error(call, "this cannot be opened by with")
        if name in ALLOCS or name == "let":
            return self._open_scope(node, name, call, item.optional_vars)
        if (handler := self.openers.get(name)) is not None:
            return handler(self, node, call, item.optional_vars)
        if name in _PLACES:
            raise self.misplaced(name, call)
        raise self.ctx.error(call, f"T.{name} cannot be opened by with")

    def _open_scope(
        self, node: ast.With, name: str, call: ast.Call, target: ast.expr | None
    ) -> Stmt:
        if target is None:
            raise self.ctx.error(node, f"with T.{name}(...) needs a name", hint="add: as x")
        if name == "let":
            args = self.ctx.arguments(call)
            value = self.ex.expr(args["value"])
        with self.ctx.scope():
            opened = (
                self._let(target, value, node).node if name == "let" else self.alloc(target, call)
            )
            return opened.replace(body=self.block(node.body))

    def _pass(self, _node: ast.Pass) -> None:
        return None

    _HANDLERS: ClassVar[dict[type[ast.stmt], Callable[[Statements, Any], Stmt | Open | None]]] = {
        ast.Assign: _assign,
        ast.AnnAssign: _ann_assign,
        ast.AugAssign: _aug_assign,
        ast.If: _if,
        ast.While: _while,
        ast.For: _for,
        ast.Expr: _expr,
        ast.With: _with,
        ast.Pass: _pass,
    }
    _CALLS: ClassVar[dict[str | None, Callable[[Statements, dict[str, Any], ast.Call], Stmt]]] = {
        "tvm_storage_sync": _barrier,
        "evaluate": _evaluate,
        "fail": _fail,
        "prefetch": _prefetch,
        "print": _print,
        "store": _store_call,
    }


def close(parts: Sequence[Stmt | Open | None], span: Span | None) -> Stmt:
    """Return the statements *parts* in order, with what follows an Open one as its body.

    *span* is their place, for a result that has none of its own.
    """
    later: list[Stmt | None] = []
    for item in reversed(parts):
        if isinstance(item, Open):
            later = [item.node.replace(body=_sequence(later, item.node.span))]
        else:
            later.append(item)
    return _sequence(later, span)


def _sequence(backwards: list[Stmt | None], span: Span | None) -> Stmt:
    result = seq(*reversed(backwards))
    return result if result.span is not None else result.replace(span=span)
