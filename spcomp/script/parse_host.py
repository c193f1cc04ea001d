"""Python syntax to the host program of a module: launches, scans, arrays made at run time."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any, cast

from spcomp.dtypes import handle
from spcomp.errors import did_you_mean
from spcomp.ir.axis import Buffer
from spcomp.ir.expr import Var
from spcomp.ir.module import HostAlloc, HostOp, Launch, Return, Scan, Trim
from spcomp.script import parse_call
from spcomp.script.parse_expr import Expressions
from spcomp.script.scope import Context, is_none

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from spcomp.ir.func import Func


def host_program(
    ctx: Context, node: ast.FunctionDef, source: Func, funcs: Collection[str]
) -> tuple[HostOp, ...]:
    """Return the operations of the function *node*, whose parameters are those of *source* by name.

    *funcs* are the names that may be launched. Raises ScriptError at the wrong line.
    """
    params = {var.name: var for var in source.params}
    for arg in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
        if arg.arg not in params:
            raise ctx.error(
                arg,
                f"{arg.arg} is no parameter of {source.name}",
                hint=did_you_mean(arg.arg, params) or "the host program has the same parameters",
            )
        ctx.bind(arg.arg, params[arg.arg], arg)
        ctx.params.append(params[arg.arg])
    return _Host(Expressions(ctx, parse_call), funcs).ops(node)


class _Host:
    def __init__(self, ex: Expressions, funcs: Collection[str]) -> None:
        self.ex, self.ctx, self.funcs = ex, ex.ctx, funcs
        self.calls: dict[str | None, Callable[[dict[str, Any]], HostOp]] = {
            "launch": self.launch,
            "scan": self.scan,
            "trim": self.trim,
            "host_return": self.hand_back,
        }

    def ops(self, node: ast.FunctionDef) -> tuple[HostOp, ...]:
        return tuple(op for stmt in node.body if (op := self.op(stmt)) is not None)

    def op(self, stmt: ast.stmt) -> HostOp | None:
        match stmt:
            case ast.Expr(value=ast.Constant(value=str())) | ast.Pass():
                return None
            case ast.Assign(targets=[target], value=ast.Call() as call):
                if self.ctx.called(call) == "host_alloc":
                    return self.alloc(target, call)
            case ast.Expr(value=ast.Call() as call):
                if (handler := self.calls.get(self.ctx.called(call))) is not None:
                    return handler(self.ctx.arguments(call))
        raise self.ctx.error(
            stmt,
            "a host program does not do this",
            hint="it has T.host_alloc, T.launch, T.scan, T.trim and T.host_return",
        )

    def alloc(self, target: ast.expr, call: ast.Call) -> HostOp:
        args = self.ctx.arguments(call)
        if not isinstance(target, ast.Name):
            raise self.ctx.error(target, "an array is assigned to a plain name")
        size, dtype = self.ex.count(args["size"]), self.ctx.element(args["dtype"])
        data = self.ctx.find(target.id) or Var(target.id, handle, span=self.ctx.span(target))
        if not isinstance(data, Var):
            raise self.ctx.error(target, f"{target.id} is made twice")
        if data.type != handle:
            message = f"{target.id} is a scalar, and an array is bound to a handle"
            raise self.ctx.error(target, message)
        buffer = Buffer(target.id, data, (size,), dtype, span=self.ctx.span(call))
        self.ctx.bind(target.id, buffer, target)
        if is_none(args.get("fill")):
            return HostAlloc(buffer, None)
        return HostAlloc(buffer, self.ex.number(args["fill"]) if "fill" in args else 0)

    def launch(self, args: dict[str, Any]) -> HostOp:
        name = self.ctx.text(args["name"], "the name of a function")
        if name not in self.funcs:
            hint = did_you_mean(name, self.funcs)
            raise self.ctx.error(args["name"], f"the module has no function {name!r}", hint=hint)
        return Launch(name)

    def scan(self, args: dict[str, Any]) -> HostOp:
        return Scan(self.array(args["buffer"]))

    def trim(self, args: dict[str, Any]) -> HostOp:
        return Trim(self.array(args["buffer"]), self.ex.count(args["size"]))

    def hand_back(self, args: dict[str, Any]) -> HostOp:
        return Return(tuple(self.array(node) for node in args.get("buffers", ())))

    def array(self, node: ast.expr) -> Buffer:
        return cast("Buffer", self.ctx.buffer(node))  # a host program declares no other
