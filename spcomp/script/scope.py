"""While parsing: the names in scope, and what one function has declared so far."""

from __future__ import annotations

import ast
import inspect
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from numbers import Integral, Real
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

from spcomp.dtypes import DType, dtype
from spcomp.errors import ScriptError, Span, SpcompError, did_you_mean
from spcomp.ir.axis import AnyBuffer, Axis, Buffer, BufferDomain, SparseBuffer
from spcomp.ir.expr import Expr, Var
from spcomp.script import syntax

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from spcomp.script.source import Source

Binding: TypeAlias = Var | Axis | SparseBuffer | Buffer
MISSING = object()


@dataclass(slots=True)
class Context:
    """The shared state of parsing one function.

    *outer* are the Python names around the function *name*, *alias* those that mean this language.
    *features* has the first use of each construct that only some levels have. *published* says that
    the program is SparseTIR's, and may declare what is refused only when it is lowered.
    """

    source: Source
    outer: Mapping[str, Any]
    name: str = ""
    alias: frozenset[str] = frozenset({"T"})
    frames: list[dict[str, Binding]] = field(default_factory=lambda: [{}])
    params: list[Var] = field(default_factory=list)
    axes: list[Axis] = field(default_factory=list)
    buffers: list[AnyBuffer] = field(default_factory=list)
    domains: list[BufferDomain] = field(default_factory=list)
    attrs: dict[str, Any] = field(default_factory=dict)
    loops: dict[Var, tuple[Expr, Expr]] = field(default_factory=dict)
    features: dict[str, ast.AST] = field(default_factory=dict)
    published: bool = False

    # -- errors -------------------------------------------------------------------------------

    def span(self, node: ast.AST) -> Span:
        """Return the place of *node* in the user's file."""
        return self.source.span(node)

    def error(
        self, node: ast.AST, message: str, *, hint: str = "", kind: type[SpcompError] = ScriptError
    ) -> SpcompError:
        """Return the error of *kind* at *node*."""
        return self.source.error(node, message, hint=hint, kind=kind)

    @contextmanager
    def blame(self, node: ast.AST, hint: str = "") -> Iterator[None]:
        """Turn the ValueError of a rule into a ScriptError at *node*."""
        try:
            yield
        except ValueError as error:
            raise self.error(node, str(error), hint=hint) from error

    # -- names --------------------------------------------------------------------------------

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Names bound inside are forgotten at the end."""
        self.frames.append({})
        yield
        self.frames.pop()

    @contextmanager
    def inside(
        self, source: Source, outer: Mapping[str, Any], frame: dict[str, Binding]
    ) -> Iterator[None]:
        """Read what stands in *source*, where *frame* and *outer* are all names that there are."""
        around = self.source, self.outer, self.frames
        self.source, self.outer, self.frames = source, outer, [frame]
        try:
            yield
        finally:
            self.source, self.outer, self.frames = around

    def find(self, name: str) -> Binding | None:
        """Return what *name* means in the script, or None."""
        for frame in reversed(self.frames):
            if name in frame:
                return frame[name]
        return None

    def bind(self, name: str, binding: Binding, node: ast.AST) -> None:
        """Bind *name*; raises ScriptError if it is bound already.

        A buffer may take over the name of the handle that it is matched to.
        """
        old = self.find(name)
        takes_over = old is not None and old is getattr(binding, "data", None)
        if old is not None and not takes_over:
            raise self.error(node, *_redeclared(name, old))
        self.frames[-1][name] = binding

    def bind_var(self, target: ast.expr, type_: DType) -> Var:
        """Bind a new variable to the name that *target* must be; ``_`` can be bound many times."""
        if not isinstance(target, ast.Name):
            raise self.error(target, "a variable is a plain name here")
        var = Var(target.id, type_, span=self.span(target))
        if target.id != "_":
            self.bind(target.id, var, target)
        return var

    def unknown(self, name: str, node: ast.AST) -> SpcompError:
        """Return the error for a name that means nothing."""
        names = [n for frame in self.frames for n in frame]
        return self.error(
            node, f"unknown name {name!r}", hint=did_you_mean(name, [*names, *self.outer])
        )

    def axis(self, node: ast.expr) -> Axis:
        """Return the axis that *node* names."""
        if isinstance(node, ast.Name):
            binding = self.find(node.id)
            if isinstance(binding, Axis):
                return binding
            if binding is None:
                axes = [axis.name for axis in self.axes]
                raise self.error(
                    node, f"unknown axis {node.id!r}", hint=did_you_mean(node.id, axes)
                )
            raise self.error(node, f"{node.id} is {describe(binding)}, not an axis")
        raise self.error(node, "an axis is given by its name")

    def buffer(self, node: ast.expr) -> AnyBuffer:
        """Return the buffer that *node* names."""
        if not isinstance(node, ast.Name):
            raise self.error(node, "a buffer is given by its name")
        binding = self.find(node.id)
        if isinstance(binding, SparseBuffer | Buffer):
            return binding
        if binding is None:
            names = [name for frame in self.frames for name in frame]
            raise self.error(node, f"unknown buffer {node.id!r}", hint=did_you_mean(node.id, names))
        hint = ""
        if isinstance(binding, Var) and binding.type.kind == "handle":
            hint = f"match it first: X = T.match_sparse_buffer({node.id}, axes, dtype)"
        raise self.error(node, f"{node.id} is {describe(binding)}, not a buffer", hint=hint)

    # -- Python values ------------------------------------------------------------------------

    def python(self, node: ast.expr) -> Any:
        """Return the Python object of a name or dotted name around the function, or MISSING."""
        match node:
            case ast.Name(id=name):
                return self.outer.get(name, MISSING) if self.find(name) is None else MISSING
            case ast.Attribute(value=value, attr=attr):
                owner = self.python(value)
                return MISSING if owner is MISSING else getattr(owner, attr, MISSING)
        return MISSING

    def number(self, node: ast.expr) -> int | float | bool | None:
        """Return the Python number that *node* names around the function, or None."""
        value = self.python(node)
        if isinstance(value, bool | int | float):
            return value
        if isinstance(value, Integral):
            return int(value)
        return float(value) if isinstance(value, Real) else None

    def text(self, node: ast.expr, what: str) -> str:
        """Return the string that *node* is or names."""
        value = node.value if isinstance(node, ast.Constant) else self.python(node)
        if not isinstance(value, str):
            raise self.error(node, f"{what} is a string", hint="write it in quotes")
        return value

    def dtype(self, node: ast.expr) -> DType:
        """Return the type that *node* spells: ``"float32"`` or ``T.float32``."""
        name = self.syntax_name(node)
        if name is None:
            name = self.text(node, "a dtype")
        try:
            return dtype(name)
        except ValueError as error:
            hint = did_you_mean(name, DTYPE_NAMES)
            raise self.error(node, str(error), hint=hint) from error

    def element(self, node: ast.expr) -> DType:
        """Return the type of elements that *node* spells: any but a handle."""
        type_ = self.dtype(node)
        if type_.kind == "handle":
            raise self.error(node, "a handle is a parameter, and no type of values")
        return type_

    # -- the language's own names -------------------------------------------------------------

    def syntax_name(self, node: ast.AST) -> str | None:
        """Return ``axis.spatial`` for ``T.axis.spatial``; None if *node* is not such a name."""
        match node:
            case ast.Attribute(value=ast.Name(id=base), attr=attr) if self._is_alias(base):
                return attr
            case ast.Attribute(
                value=ast.Attribute(value=ast.Name(id=base), attr="axis"), attr=attr
            ):
                return f"axis.{attr}" if self._is_alias(base) else None
        return None

    def _is_alias(self, name: str) -> bool:
        value = self.outer.get(name)
        if isinstance(value, ModuleType):
            return value.__name__ in ("spcomp.script", "spcomp.sparsetir.script.tir")
        return value is None and name in self.alias

    def called(self, node: ast.AST | None) -> str | None:
        """Return the name of the function of this language that *node* calls, or None."""
        return self.syntax_name(node.func) if isinstance(node, ast.Call) else None

    def is_builtin(self, func: ast.expr, names: Collection[str]) -> bool:
        """Whether *func* is one of Python's *names*, not hidden by a name of the script."""
        return isinstance(func, ast.Name) and func.id in names and self.find(func.id) is None

    def arguments(self, call: ast.Call) -> dict[str, Any]:
        """Return the syntax of the argument for each parameter of the function that *call* calls.

        Parameters that are left out are absent, and so are optional ones that are None. ``*names``
        give tuples.
        """
        name = self.called(call) or ""
        signature = _signature(name)
        if signature is None:
            raise self.error(
                call.func, f"T has no function {name!r}", hint=did_you_mean(name, NAMES)
            )
        for arg in call.args:
            if isinstance(arg, ast.Starred):
                raise self.error(arg, f"T.{name} takes no starred arguments")
        keywords = {k.arg: k.value for k in call.keywords if k.arg is not None}
        if len(keywords) < len(call.keywords):
            raise self.error(call, f"T.{name} takes no ** arguments")
        try:
            bound = signature.bind(*call.args, **keywords).arguments
        except TypeError as error:
            raise self.error(call, f"T.{name}: {error}", hint=_form(name, signature)) from error
        params = signature.parameters.values()
        optional = {*_NULLABLE, *(p.name for p in params if p.default is None)}
        return {k: v for k, v in bound.items() if not (k in optional and is_none(v))}


def is_none(node: object) -> bool:
    """Whether *node* is the literal None."""
    return isinstance(node, ast.Constant) and node.value is None


def describe(binding: Binding) -> str:
    """Return what a name stands for, in words."""
    match binding:
        case Axis():
            return "an axis"
        case Var(type=type_):
            return "a handle" if type_.kind == "handle" else "a scalar"
    return "a buffer"


_NULLABLE = ("indptr", "indices")  # arrays that are results, or a dense fiber
NAMES = frozenset(syntax.__all__)
DTYPE_NAMES = tuple(k for k, v in vars(syntax).items() if isinstance(v, syntax.DTypeName))


@cache
def _signature(name: str) -> inspect.Signature | None:
    owner: Any = syntax
    for part in name.split("."):
        owner = getattr(owner, part, None)
    ours = getattr(owner, "__module__", "").startswith(syntax.__name__)
    is_ours = ours and (not isinstance(owner, type) or owner is syntax.Buffer)
    return inspect.signature(owner) if is_ours and callable(owner) else None


def _form(name: str, signature: inspect.Signature) -> str:
    plain = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    return f"T.{name}{inspect.Signature(plain)}"


def _redeclared(name: str, old: Binding) -> tuple[str, ...]:
    return (f"{name} is declared already, as {describe(old)}",)
