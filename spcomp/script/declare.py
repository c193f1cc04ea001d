"""Python syntax to axes, domains and buffers, with the check that a buffer has a layout."""

from __future__ import annotations

import ast
import math
from typing import TYPE_CHECKING, Any, ClassVar

from spcomp.errors import FormatError
from spcomp.ir.analysis.forest import layout_conflict
from spcomp.ir.axis import (
    AnyBuffer,
    Attach,
    Axis,
    Buffer,
    BufferDomain,
    Domain,
    Flatten,
    Fuse,
    Intersect,
    SparseBuffer,
    Union,
)
from spcomp.ir.expr import Expr, Var
from spcomp.ir.promotion import fits
from spcomp.ir.visitor import walk
from spcomp.script.scope import is_none

if TYPE_CHECKING:
    from collections.abc import Callable

    from spcomp.dtypes import DType
    from spcomp.script.parse_expr import Expressions

AXES = frozenset({"dense_fixed", "dense_variable", "sparse_fixed", "sparse_variable"})
MATCHES = frozenset({"match_sparse_buffer", "match_buffer"})
ALLOCS = frozenset({"alloc_sparse_buffer", "alloc_buffer"})
DOMAINS = frozenset({"fuse", "attach", "flatten", "union", "intersect"})


class Declarations:
    """Parses the declarations of one function."""

    def __init__(self, ex: Expressions) -> None:
        self.ex, self.ctx = ex, ex.ctx

    # -- axes ---------------------------------------------------------------------------------

    def axis(self, target: ast.expr, call: ast.Call) -> None:
        """Declare the axis *target* that *call* describes."""
        kind: Any = self.ctx.called(call)
        args = self.ctx.arguments(call)
        fields: dict[str, Any] = {"span": self.ctx.span(call)} | self._options(args)
        if kind == "dense_fixed":
            fields["length"] = self._size(args["length"])
        else:
            fields["parent"] = self.ctx.axis(args["parent"])
            length, count = self._pair(args.get("shape"), call, "shape", "(length, count)")
            fields["length"] = self._size(length)
            fields |= self._ARRAYS[kind](self, args, count or args.get("nnz"), call)
        axis = Axis(self._name(target), kind, **fields)
        for wrong, what, how in (
            (
                axis.padded and (axis.sorted or axis.indices is None),
                "an axis with padding has coordinates in no order, in an array that is given",
                "sorted=False",
            ),
            (
                axis.shifted and not (axis.padded and axis.is_below_root),
                "an axis that is shifted has padding, and stands below a dense_fixed one",
                "padded=True",
            ),
            (
                axis.hashed and not (axis.padded and axis.unique),
                "the tables of a hashed axis have free slots, and a coordinate once",
                "padded=True and unique=True",
            ),
        ):
            if wrong:
                hint = f"declare it with {how}"
                raise self.ctx.error(call, what, hint=hint, kind=FormatError)
        self.ctx.bind(axis.name, axis, target)
        self.ctx.axes.append(axis)
        self.ctx.features.setdefault("an axis", call)

    def _options(self, args: dict[str, Any]) -> dict[str, Any]:
        options: dict[str, Any] = {}
        if "idtype" in args:
            options["idtype"] = self.ctx.dtype(args["idtype"])
            if str(options["idtype"]) not in ("int32", "int64"):
                raise self.ctx.error(args["idtype"], "an idtype is int32 or int64")
        for name in ("sorted", "unique", "padded", "shifted", "hashed"):
            if name in args:
                options[name] = bool(self.ex.number(args[name]))
        return options

    def _dense_variable(
        self, args: dict[str, Any], nnz: ast.expr | None, call: ast.Call
    ) -> dict[str, Any]:
        if "indptr" not in args:
            raise self.ctx.error(call, "a dense_variable axis needs its indptr", kind=FormatError)
        return {"indptr": self._array(args["indptr"]), "nnz": nnz and self._size(nnz)}

    def _sparse_fixed(
        self, args: dict[str, Any], count: ast.expr | None, call: ast.Call
    ) -> dict[str, Any]:
        if "indices" not in args:
            raise self.ctx.error(call, "a sparse_fixed axis needs its indices", kind=FormatError)
        if count is None:
            raise self.ctx.error(
                call,
                "a sparse_fixed axis needs the number of elements per fiber",
                hint="the shape is (length, nnz_cols)",
                kind=FormatError,
            )
        return {"indices": self._array(args["indices"]), "nnz_cols": self._size(count)}

    def _sparse_variable(
        self, args: dict[str, Any], nnz: ast.expr | None, call: ast.Call
    ) -> dict[str, Any]:
        indptr, indices = self._pair(args.get("arrays"), call, "arrays", "(indptr, indices)")
        if (indptr is None) != (indices is None):
            one, other = ("indices", "an indptr") if indptr is None else ("an indptr", "indices")
            raise self.ctx.error(
                indptr or indices or call,
                f"{one} without {other}",
                hint="(None, None) declares an axis whose arrays are results",
                kind=FormatError,
            )
        if indptr is None or indices is None:
            if nnz is not None:
                raise self.ctx.error(
                    nnz,
                    "an axis whose arrays are results has no nnz yet",
                    hint="write None for it",
                    kind=FormatError,
                )
            return {}
        arrays = {"indptr": self._array(indptr), "indices": self._array(indices)}
        return arrays | {"nnz": nnz and self._size(nnz)}

    _ARRAYS: ClassVar[dict[str, Callable[..., dict[str, Any]]]] = {
        "dense_variable": _dense_variable,
        "sparse_fixed": _sparse_fixed,
        "sparse_variable": _sparse_variable,
    }

    def _pair(
        self, node: ast.expr | None, call: ast.Call, what: str, form: str
    ) -> tuple[Any, ast.expr | None]:
        """Return the two parts of a pair, or a single expression and None; None stays None."""
        if isinstance(node, ast.Tuple | ast.List):
            if len(node.elts) != 2:
                raise self.ctx.error(node, f"the {what} of an axis is a pair", hint=form)
            first, second = (None if is_none(part) else part for part in node.elts)
        else:
            first, second = node, None
        if first is None and what == "shape":
            raise self.ctx.error(node or call, "an axis needs its length", kind=FormatError)
        return first, second

    def _array(self, node: ast.expr) -> Var:
        """Return the handle *node*, or the one of the buffer that *node* names."""
        binding = self.ctx.find(node.id) if isinstance(node, ast.Name) else None
        if isinstance(binding, SparseBuffer | Buffer) and binding.data is not None:
            return binding.data
        return self._handle(node)

    def _handle(self, node: ast.expr) -> Var:
        if not isinstance(node, ast.Name):
            raise self.ctx.error(node, "a handle is given by its name")
        binding = self.ctx.find(node.id)
        if binding is None:
            raise self.ctx.unknown(node.id, node)
        if not isinstance(binding, Var) or binding.type.kind != "handle":
            raise self.ctx.error(
                node, f"{node.id} is not a handle", hint="declare the parameter as T.handle"
            )
        return binding

    def _size(self, node: ast.expr) -> Expr:
        """Return *node*, an integer made of parameters and literals."""
        size = self.ex.integer(node)
        for part in walk(size):
            if isinstance(part, Var) and part not in self.ctx.params:
                raise self.ctx.error(
                    node,
                    f"a size is made of parameters, and {part.name} is none",
                    hint="write its value in place",
                )
        return size

    # -- domains ------------------------------------------------------------------------------

    def domain(self, node: ast.expr) -> Domain:
        """Return the domain of an sp_iter that *node* spells: an axis or several combined."""
        name = self.ctx.called(node)
        if not isinstance(node, ast.Call) or name not in DOMAINS:
            return self.ctx.axis(node)
        args = self.ctx.arguments(node)
        if name == "attach":
            return self._attach(args, node)
        if name in ("union", "intersect"):
            return self._merge(name, args.get("axes", ()), node)
        axes = tuple(self.ctx.axis(arg) for arg in args.get("axes", ()))
        if not axes:
            raise self.ctx.error(node, f"T.{name} takes at least one axis")
        for above, axis, arg in zip(axes, axes[1:], args["axes"][1:], strict=False):
            if axis.parent is not above:
                raise self.ctx.error(
                    arg,
                    f"{axis.name} is not a child of {above.name}",
                    hint=f"T.{name} takes a chain of axes, each the parent of the next",
                )
        return Fuse(axes) if name == "fuse" else Flatten(axes)

    def _merge(self, name: str, args: tuple[ast.expr, ...], node: ast.Call) -> Union | Intersect:
        parts = tuple(self.domain(arg) for arg in args)
        if len(parts) < 2:
            raise self.ctx.error(node, f"T.{name} takes at least two axes")
        for part, arg in zip(parts, args, strict=True):
            if not isinstance(part, Axis | Attach):
                raise self.ctx.error(arg, f"T.{name} takes axes and T.attach of one")
        operands = tuple(part for part in parts if isinstance(part, Axis | Attach))
        return Union(operands) if name == "union" else Intersect(operands)

    def _attach(self, args: dict[str, Any], node: ast.Call) -> Attach:
        axis, to = self.ctx.axis(args["axis"]), self.ctx.axis(args["to"])
        if axis.parent is None:
            raise self.ctx.error(node, f"{axis.name} has no parent to attach in place of")
        return Attach(axis, to)

    # -- buffers ------------------------------------------------------------------------------

    def match(self, target: ast.expr, call: ast.Call) -> None:
        """Declare the buffer *target* at a handle."""
        args = self.ctx.arguments(call)
        handle = self._array(args["param"])
        if any(b.data is handle for b in self.ctx.buffers):
            self.ctx.features.setdefault("a handle matched twice", args["param"])
        self.add(self.buffer(target, call, args, handle), target)

    def add(self, buffer: AnyBuffer, node: ast.AST) -> None:
        """Add *buffer* to the function and bind its name."""
        self.ctx.bind(buffer.name, buffer, node)
        self.ctx.buffers.append(buffer)

    def buffer(
        self, target: ast.expr, call: ast.AST, args: dict[str, Any], data: Var | None
    ) -> AnyBuffer:
        """Return the buffer that *call* describes."""
        name, span = self._name(target), self.ctx.span(call)
        dtype = self.ctx.element(args.get("dtype", _FLOAT32))
        options: dict[str, Any] = {}
        if "scope" in args:
            options["scope"] = self.ctx.text(args["scope"], "a scope") or "global"
        if "distinct" in args:
            options["distinct"] = bool(self.ex.number(args["distinct"]))
            if options["distinct"] and not dtype.is_integer:
                raise self.ctx.error(args["distinct"], f"{name} is distinct, but of {dtype}")
            if options["distinct"] and "strides" in args:  # elements may share memory
                raise self.ctx.error(args["distinct"], f"{name} is distinct, and has strides")
        if "axes" not in args:
            return self._dense(Buffer(name, data, (), dtype, span=span, **options), args)
        axes = tuple(self.ctx.axis(node) for node in items(args["axes"]))
        conflict = None if self.ctx.published else layout_conflict(axes)
        if conflict is not None:
            raise self.ctx.error(call, conflict.message, hint=conflict.hint, kind=FormatError)
        if "fill" in args:
            options["fill"] = self._fill(args["fill"], dtype)
        if "extra_storage" in args:
            options["extra_storage"] = self.ex.whole(args["extra_storage"])
        self.ctx.features.setdefault("a sparse buffer", call)
        return SparseBuffer(name, data, axes, dtype, span=span, **options)

    def _fill(self, node: ast.expr, dtype: DType) -> int | float:
        """Return the number at *node* that elements of *dtype* which are not stored read as."""
        number = self.ex.number(node)
        whole = int(number) if math.isfinite(number) and number == int(number) else number
        if not fits(whole, dtype):
            raise self.ctx.error(node, f"fill is {number}, which is no {dtype}")
        return number

    def _dense(self, buffer: Buffer, args: dict[str, Any]) -> Buffer:
        """Return *buffer* with its shape and strides; for a parameter these use parameters only."""
        size = self.ex.integer if buffer.data is None else self._size
        shape = tuple(size(node) for node in items(args["shape"]))
        strides = tuple(size(node) for node in items(args["strides"])) if "strides" in args else ()
        if strides and len(strides) != len(shape):
            raise self.ctx.error(args["strides"], f"{buffer.name} needs a stride per dimension")
        return buffer.replace(shape=shape, strides=strides or None)

    def domain_of_values(self, call: ast.Call) -> None:
        """Record the promise of ``T.assume_buffer_domain``, which a call checks.

        It is ignored for a local buffer, about which no caller can promise anything.
        """
        args = self.ctx.arguments(call)
        buffer, bounds = self.ctx.buffer(args["buffer"]), items(args["domain"])
        if len(bounds) != 2:
            raise self.ctx.error(args["domain"], "a domain is [low, high]")
        low, high = (self._size(bound) for bound in bounds)
        if buffer.data is not None:
            self.ctx.domains.append(BufferDomain(buffer, low, high))

    def _name(self, target: ast.expr) -> str:
        if not isinstance(target, ast.Name):
            raise self.ctx.error(target, "a declaration is assigned to a plain name")
        return target.id


_FLOAT32 = ast.Constant("float32")


def items(node: ast.expr) -> list[ast.expr]:
    """Return the parts of a tuple or list, or *node* itself as the only part."""
    return node.elts if isinstance(node, ast.Tuple | ast.List) else [node]
