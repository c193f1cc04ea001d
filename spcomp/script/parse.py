"""Script text to functions and modules: the first step of the route."""

from __future__ import annotations

import ast
import inspect
from typing import TYPE_CHECKING, Any, TypeAlias

from spcomp.dtypes import handle
from spcomp.errors import ScriptError, Span, expect, refuse_deep_nests
from spcomp.ir.axis import Buffer
from spcomp.ir.expr import Var
from spcomp.ir.func import Func
from spcomp.ir.module import Module
from spcomp.ir.program import CoordFunc, FlatFunc, PosFunc
from spcomp.ir.stmt import Alloc, Stmt
from spcomp.ir.visitor import walk
from spcomp.locks import syntax_tree
from spcomp.script.declare import AXES, MATCHES
from spcomp.script.macros import expand
from spcomp.script.origin import name_of_text
from spcomp.script.parse_block import HANDLERS
from spcomp.script.parse_host import host_program
from spcomp.script.parse_stmt import Statements, close
from spcomp.script.scope import DTYPE_NAMES, Context
from spcomp.script.source import Source, names_around, read_function, read_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from spcomp.dtypes import DType

Program: TypeAlias = Func | Module[Func]
LEVEL = "sparse_tir_level"
MANY = "a buffer that has strides, or not one dimension"
_LEVELS: dict[int, type[Func]] = {2: CoordFunc, 1: PosFunc, 0: FlatFunc}
_FOREIGN: dict[int, tuple[str, ...]] = {
    2: ("T.block", "T.merge", "T.prefix", "an absolute position", "a handle matched twice"),
    1: ("T.sp_iter", "T.stored"),
    0: (
        *("T.sp_iter", "T.stored", "T.block", "T.merge"),
        *("a sparse buffer", "an axis", "an absolute position", MANY),
    ),
}
_SPACE = {2: "coordinate", 1: "position", 0: "flat"}
_FUNCTIONS = "__spcomp_functions__"  # where a class body keeps its functions, also of one name


def parse_function(
    function: Callable[..., Any],
    names: Mapping[str, Any] | None = None,
    *,
    published: bool = False,
) -> Func:
    """Return the CoordFunc, PosFunc or FlatFunc that the Python *function* spells.

    *names* are Python names that it may use besides its globals and closure. For *published* see
    Context. Raises ScriptError or FormatError at the wrong line.
    """
    source, node = read_function(function)
    outer = names_around(function, names)
    return _function(source, node, outer, published=published)


def parse(text: str) -> Program:
    """Return the program that *text* defines: a function at any level, or a Module.

    *text* is what ``Kernel.stage``, ``Func.script`` or ``Schedule.func.script()`` prints, edited or
    not; ``spcomp.compile`` takes the result. Nothing in *text* is run. Raises ScriptError or
    FormatError at the wrong line, and ScriptError unless there is exactly one program.
    """
    expect("text", text, str, "a program as text")
    file = name_of_text(text)
    programs = parse_source(text, file)
    if len(programs) != 1:
        count = len(programs) or "no"
        raise ScriptError(
            f"the text has {count} programs, and should have one",
            Span(file, 1),
            hint="a program is a function with @T.prim_func, or a class with @T.ir_module",
        )
    return programs[0]


def parse_source(text: str, filename: str) -> list[Program]:
    """Return the programs that Python *text* defines at its top level, in order.

    Only decorated functions and classes are read, and numbers assigned to names; nothing is run.
    Raises ScriptError or FormatError at the wrong line of *filename*.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        place = Span(filename, text.count("\n", 0, error.start) + 1)
        raise ScriptError(f"the text has {text[error.start]!r}, no character", place) from None
    with refuse_deep_nests(ScriptError):
        return _programs(text, filename)


def parse_published(text: str, filename: str) -> list[Program]:
    """Return the programs of SparseTIR that *text* defines; see parse_source and Context."""
    with refuse_deep_nests(ScriptError):
        return _programs(text, filename, published=True)


def _programs(text: str, filename: str, *, published: bool = False) -> list[Program]:
    source, tree = read_text(text, filename)
    outer: dict[str, Any] = {}
    alias = frozenset({"T", *_aliases(tree)})
    programs: list[Program] = []
    for node in tree.body:
        match node:
            case ast.FunctionDef() if _is_decorated(node, "prim_func"):
                programs.append(_function(source, node, outer, alias, published=published))
            case ast.ClassDef() if _is_decorated(node, "ir_module"):
                programs.append(_class(source, node, outer, alias))
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=value)):
                outer[name] = value
    return programs


def decorate(function: Callable[..., Any], published: Callable[[Func], Func] | None = None) -> Func:
    """Parse the function that ``T.prim_func`` decorates; *published* converts it to our form."""
    frame = inspect.currentframe()
    ours = (__name__, "spcomp.script.decorators", "spcomp.errors", "spcomp.sparsetir.script.tir")
    while frame is not None and frame.f_globals.get("__name__") in ours:
        frame = frame.f_back
    names = frame.f_locals if frame is not None else {}
    with refuse_deep_nests(ScriptError):
        func = parse_function(function, names, published=published is not None)
    func = func if published is None else published(func)
    if "__qualname__" in names:  # a class body
        names.setdefault(_FUNCTIONS, []).append(func)
    return func


def decorate_class(cls: type) -> Module[Func]:
    """Return the Module of the class that ``T.ir_module`` decorates."""
    funcs: list[Func] = vars(cls).get(_FUNCTIONS, [])
    hosts = [value for value in vars(cls).values() if inspect.isfunction(value)]
    if not funcs:
        raise ScriptError(f"the module {cls.__name__} has no T.prim_func")
    if not hosts:
        return _single(funcs, cls.__name__)
    source, node = read_function(hosts[0])
    ctx = Context(source, hosts[0].__globals__, node.name)
    return _module(funcs, ctx, node)


def _class(
    source: Source, node: ast.ClassDef, outer: Mapping[str, Any], alias: frozenset[str]
) -> Module[Func]:
    inside = [item for item in node.body if isinstance(item, ast.FunctionDef)]
    funcs = [
        _function(source, item, outer, alias) for item in inside if _is_decorated(item, "prim_func")
    ]
    hosts = [item for item in inside if _is_decorated(item, "host")]
    if not funcs:
        raise source.error(node, f"the module {node.name} has no T.prim_func")
    if not hosts:
        return _single(funcs, node.name)
    return _module(funcs, Context(source, outer, hosts[0].name, alias), hosts[0])


def _single(funcs: list[Func], name: str) -> Module[Func]:
    from spcomp.ir.module import single

    if len(funcs) > 1:
        raise ScriptError(
            f"the module {name} has {len(funcs)} functions and does not say which runs when",
            funcs[1].span,
            hint="add a function decorated with @T.host that launches them",
        )
    return single(funcs[0])


def _module(funcs: list[Func], ctx: Context, node: ast.FunctionDef) -> Module[Func]:
    source, *phases = funcs
    launched = tuple(phases or funcs)
    host = host_program(ctx, node, source, {func.name for func in launched})
    return Module(source, launched, host)


def _aliases(tree: ast.Module) -> list[str]:
    names = []
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module == "spcomp":
            names += [a.asname or a.name for a in node.names if a.name == "script"]
        elif isinstance(node, ast.Import):
            names += [a.asname for a in node.names if a.name == "spcomp.script" and a.asname]
    return names


def _is_decorated(node: ast.FunctionDef | ast.ClassDef, name: str) -> bool:
    return any(isinstance(d, ast.Attribute) and d.attr == name for d in node.decorator_list)


# -- one function --------------------------------------------------------------------------------


def _function(
    source: Source,
    node: ast.FunctionDef,
    outer: Mapping[str, Any],
    alias: frozenset[str] = frozenset({"T"}),
    *,
    published: bool = False,
) -> Func:
    ctx = Context(source, outer, node.name, alias, published=published)
    st = Statements(ctx, HANDLERS, expand)
    _parameters(st, node)
    rest = (stmt for stmt in node.body if not _declaration(st, stmt))
    body = close([st.statement(stmt) for stmt in rest], ctx.span(node))
    level = _level(ctx, body, node)
    return _LEVELS[level](
        node.name,
        tuple(ctx.params),
        tuple(ctx.axes),
        tuple(ctx.buffers),
        body,
        tuple(ctx.domains),
        tuple(ctx.attrs.items()),
        span=ctx.span(node),
    )


def _parameters(st: Statements, node: ast.FunctionDef) -> None:
    ctx, args = st.ctx, node.args
    extra = (args.vararg, args.kwarg, *args.defaults, *(d for d in args.kw_defaults if d))
    for wrong in extra:
        if wrong is not None:
            raise ctx.error(wrong, "a parameter is a name and its type, nothing else")
    arrays: list[tuple[ast.arg, Var, dict[str, Any]]] = []
    for arg in (*args.posonlyargs, *args.args, *args.kwonlyargs):
        annotation = _annotation(ctx, arg)
        array = _array(ctx, annotation)
        dtype = handle if array is not None else _scalar(ctx, annotation)
        var = Var(arg.arg, dtype, span=ctx.span(arg))
        ctx.bind(arg.arg, var, arg)
        ctx.params.append(var)
        if array is not None:
            arrays.append((arg, var, array))
    for arg, var, array in arrays:  # shapes may use any parameter
        name = ast.copy_location(ast.Name(arg.arg), arg)
        st.declare.add(st.declare.buffer(name, arg, array, var), arg)


def _annotation(ctx: Context, arg: ast.arg) -> ast.expr:
    node = arg.annotation
    if node is None:
        raise ctx.error(
            arg, f"{arg.arg} needs a type", hint=f"write {arg.arg}: T.handle or {arg.arg}: T.int32"
        )
    if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
        return node
    try:
        inner: ast.expr = syntax_tree(node.value, "eval").body
    except SyntaxError as error:
        raise ctx.error(node, f"{node.value!r} is no type") from error
    for part in ast.walk(inner):
        ast.copy_location(part, node)
    return inner


def _array(ctx: Context, node: ast.expr) -> dict[str, Any] | None:
    """Return the arguments of ``T.Buffer[...]`` or ``T.Buffer(...)``; None for anything else."""
    match node:
        case ast.Subscript(value=value, slice=inner) if ctx.syntax_name(value) == "Buffer":
            match inner:
                case ast.Tuple(elts=[ast.Tuple() | ast.List() as shape, kind]):
                    return {"shape": shape, "dtype": kind}
                case ast.Tuple(elts=[shape, ast.Constant(value=str()) | ast.Attribute() as kind]):
                    return {"shape": shape, "dtype": kind}
            return {"shape": inner}
        case ast.Call() if ctx.called(node) == "Buffer":
            return ctx.arguments(node)
    return None


def _scalar(ctx: Context, node: ast.expr) -> DType:
    if ctx.syntax_name(node) not in DTYPE_NAMES:
        raise ctx.error(
            node, f"{ast.unparse(node)} is no type of a parameter", hint="use T.handle or T.int32"
        )
    return ctx.dtype(node)


def _declaration(st: Statements, stmt: ast.stmt) -> bool:
    """Handle *stmt* if it is a declaration of the function, and say whether it is."""
    match stmt:
        case ast.Assign(targets=[target], value=ast.Call() as call):
            name = st.ctx.called(call)
            if name in AXES:
                st.declare.axis(target, call)
            elif name in MATCHES:
                st.declare.match(target, call)
            return name in AXES or name in MATCHES
        case ast.Expr(value=ast.Call() as call):
            name = st.ctx.called(call)
            if name == "func_attr":
                st.ctx.attrs |= dict(st.attrs(st.ctx.arguments(call)["attrs"]))
                st.ctx.features["T.func_attr"] = call
            elif name == "assume_buffer_domain":
                st.declare.domain_of_values(call)
            return name in ("func_attr", "assume_buffer_domain")
    return False


def _level(ctx: Context, body: Stmt, node: ast.FunctionDef) -> int:
    """Return the level of the function, by its attribute, or else by what it contains."""
    local = (part.buffer for part in walk(body) if isinstance(part, Alloc))
    dense = [buffer for buffer in (*ctx.buffers, *local) if isinstance(buffer, Buffer)]
    if any(len(buffer.shape) != 1 or buffer.strides for buffer in dense):
        ctx.features[MANY] = node
    level, inferred = ctx.attrs.pop(LEVEL, None), _infer(ctx, body)
    if level is None or (level == 0 and "T.block" in ctx.features):  # SparseTIR has blocks there
        level = inferred
    elif level not in _LEVELS:
        where = ctx.features.get("T.func_attr", node)
        raise ctx.error(where, f"{LEVEL} is 2, 1 or 0, not {level!r}")
    for feature in _FOREIGN[level]:
        if feature in ctx.features:
            raise ctx.error(
                ctx.features[feature],
                f"{feature} has no meaning in a function of {_SPACE[level]} space",
                hint=_foreign_hint(feature, level, inferred),
            )
    return int(level)


def _foreign_hint(feature: str, level: int, inferred: int) -> str:
    if level != inferred:
        return f'the function says "{LEVEL}": {level}; leave that out'
    if feature == "a handle matched twice":
        return "give the second buffer a handle of its own"
    return "use it in a function without T.sp_iter" if level == 2 else ""


def _infer(ctx: Context, body: Stmt) -> int:
    if "T.sp_iter" in ctx.features:
        return 2
    if "T.block" in ctx.features or "T.merge" in ctx.features:
        return 1
    if "a sparse buffer" in ctx.features or "an axis" in ctx.features:
        runs = any(type(part).__name__ in ("For", "Store", "While") for part in walk(body))
        return 1 if runs else 2  # declarations only: the description of a format
    return 1 if MANY in ctx.features else 0
