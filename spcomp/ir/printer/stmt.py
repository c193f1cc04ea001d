"""IR to script text, statements: one method per node."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from spcomp.dtypes import int32, int64
from spcomp.ir.access import Load
from spcomp.ir.axis import (
    AnyBuffer,
    Attach,
    Axis,
    Buffer,
    Domain,
    Flatten,
    Fuse,
    SparseBuffer,
    Union,
)
from spcomp.ir.coordinate import SpIter
from spcomp.ir.expr import Const, Expr, Var
from spcomp.ir.places import places
from spcomp.ir.position import Block, BlockIter, Merge, Region
from spcomp.ir.printer.expr import ExprPrinter, identifier, literal_text
from spcomp.ir.stmt import (
    Alloc,
    Attrs,
    Barrier,
    Evaluate,
    Fail,
    For,
    If,
    Let,
    Prefetch,
    Prefix,
    Print,
    Seq,
    Stmt,
    Store,
    While,
    parts,
)
from spcomp.ir.visitor import Visitor

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from spcomp.errors import Span
    from spcomp.ir.node import Node

_LOOPS = {"serial": "serial", "parallel": "parallel", "vectorized": "vectorized"}
_LOOPS |= {"unroll": "unroll", "bound": "thread_binding"}


class Names:
    """Names for variables, axes and buffers: their own, numbered where two would be in scope."""

    def __init__(self) -> None:
        self.by_node: dict[Node, str] = {}
        self.frames: list[dict[str, Node]] = [{}]

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Free the names given inside at the end."""
        self.frames.append({})
        yield
        self.frames.pop()

    def give(self, node: Any) -> str:
        """Choose a name for *node*; a buffer may share that of the handle it is matched to."""
        wish = name = identifier(node.name)
        count = 0
        while (holder := self._holder(name)) is not None:
            if holder is getattr(node, "data", None):
                break
            count += 1
            name = f"{wish}_{count}"
        self.frames[-1][name] = node
        self.by_node[node] = name
        return name

    def of(self, node: Any) -> str:
        """Return the name that *node* was given, or its own."""
        return self.by_node.get(node) or identifier(node.name)

    def _holder(self, name: str) -> Node | None:
        return next((frame[name] for frame in reversed(self.frames) if name in frame), None)


class StmtPrinter(Visitor[None]):
    """Collects the lines of statements."""

    COVERS = (
        *(Seq, Let, Store, If, For, While, Alloc, Evaluate, Fail, Print, Prefetch, Barrier),
        *(Prefix, SpIter, Block, Merge),
    )

    def __init__(self, indent: int = 0) -> None:
        self.names = Names()
        self.ex = ExprPrinter(self.names.of)
        self.lines: list[str] = []
        self.places: list[tuple[Span, ...]] = []  # of each line, its own statement's first
        self.here: tuple[Span, ...] = ()
        self.indent = indent

    # -- lines --------------------------------------------------------------------------------

    def line(self, text: str) -> None:
        """Add one line."""
        self.lines.append("    " * self.indent + text)
        self.places.append(self.here)

    def visit(self, node: Node) -> None:
        """Add the lines of *node*; without a place, they are from that of the node around it."""
        with self.at(node):
            super().visit(node)

    @contextmanager
    def at(self, *nodes: Node) -> Iterator[None]:
        """Let the lines that are added inside come from the places of *nodes*, if they have any."""
        around = self.here
        self.here = tuple(span for node in nodes for span in places(node)) or around
        yield
        self.here = around

    @contextmanager
    def inside(self, header: str) -> Iterator[None]:
        """Open an indented suite with *header*; an empty one gets a pass."""
        self.line(header)
        self.indent += 1
        before = len(self.lines)
        with self.names.scope():
            yield
        if len(self.lines) == before:
            self.line("pass")
        self.indent -= 1

    def suite(self, header: str, body: Stmt) -> None:
        """Add *body* under *header*."""
        with self.inside(header):
            self.rest(body)

    def rest(self, stmt: Stmt, *, last: bool = True) -> None:
        """Add *stmt* to the open suite; *last*: its bindings may stay in scope to the end."""
        if isinstance(stmt, Seq):
            for k, part in enumerate(stmt.body):
                self.rest(part, last=last and k == len(stmt.body) - 1)
        elif isinstance(stmt, Let | Alloc) and not last:
            self._scoped(stmt)
        else:
            self.visit(stmt)

    # -- statements ---------------------------------------------------------------------------

    def visit_Seq(self, stmt: Seq) -> None:
        """Add the statements in order."""
        self.rest(stmt)

    def visit_Let(self, stmt: Let) -> None:
        """Add ``x = value`` and what follows."""
        value = self.ex.alone(stmt.value)
        self.line(f"{self.names.give(stmt.var)} = {value}")
        self.rest(stmt.body)

    def visit_Alloc(self, stmt: Alloc) -> None:
        """Add ``X = T.alloc_buffer(...)`` and what follows."""
        call = self.buffer_call(stmt.buffer)
        self.line(f"{self.names.give(stmt.buffer)} = {call}")
        self.rest(stmt.body)

    def _scoped(self, stmt: Let | Alloc) -> None:
        """Add a binding whose scope ends before the suite does."""
        if isinstance(stmt, Let):
            bound: Node = stmt.var
            call = f"T.let({self.ex.alone(stmt.value)})"
        else:
            bound, call = stmt.buffer, self.buffer_call(stmt.buffer)
        with self.names.scope():
            self.suite(f"with {call} as {self.names.give(bound)}:", stmt.body)

    def visit_Store(self, stmt: Store) -> None:
        """Add ``A[i] = value``, or T.store if it is masked or atomic."""
        name, dtype = self.names.of(stmt.buffer), Load(stmt.buffer, stmt.indices).dtype
        value = self.ex.stored(stmt.value, dtype)
        if stmt.mask is None and not stmt.atomic:
            self.line(f"{name}[{self.ex.indices(stmt.indices)}] = {value}")
            return
        options = f", mask={self.ex.condition(stmt.mask)}" if stmt.mask is not None else ""
        options += ", atomic=True" if stmt.atomic else ""
        self.line(f"T.store({name}, {self.ex.index_argument(stmt.indices)}, {value}{options})")

    def visit_If(self, stmt: If, word: str = "if") -> None:
        """Add the branches; an else that is only an If becomes elif."""
        cond = self.ex.condition(stmt.cond)
        cond = f"T.uniform({cond})" if stmt.uniform else cond
        self.suite(f"{word} {cond}:", stmt.then)
        if isinstance(stmt.otherwise, If):
            with self.at(stmt.otherwise):
                self.visit_If(stmt.otherwise, "elif")
        elif stmt.otherwise is not None:
            self.suite("else:", stmt.otherwise)

    def visit_For(self, stmt: For) -> None:
        """Add the loop."""
        args = [self.ex.count(stmt.end)]
        if not _is_literal(stmt.begin, 0):
            args.insert(0, self.ex.count(stmt.begin))
        if stmt.kind == "bound":
            args.append(f"thread={literal_text(stmt.thread)}")
        if stmt.attrs:
            args.append(f"annotations={self.attrs(stmt.attrs)}")
        with self.names.scope():
            call = f"T.{_LOOPS[stmt.kind]}({', '.join(args)})"
            self.suite(f"for {self.names.give(stmt.var)} in {call}:", stmt.body)

    def visit_While(self, stmt: While) -> None:
        """Add the loop."""
        self.suite(f"while {self.ex.condition(stmt.cond)}:", stmt.body)

    def visit_Evaluate(self, stmt: Evaluate) -> None:
        """Add the value."""
        self.line(f"T.evaluate({self.ex.alone(stmt.value)})")

    def visit_Fail(self, stmt: Fail) -> None:
        """Add the message."""
        self.line(f"T.fail({self._shown(stmt)})")

    def visit_Print(self, stmt: Print) -> None:
        """Add what is printed."""
        self.line(f"T.print({self._shown(stmt)})")

    def _shown(self, stmt: Fail | Print) -> str:
        texts = (literal_text(p) if isinstance(p, str) else self.ex.alone(p) for p in parts(stmt))
        return ", ".join(texts)

    def visit_Prefetch(self, stmt: Prefetch) -> None:
        """Add the hint."""
        self.line(f"T.prefetch({self.names.of(stmt.buffer)}, {self.ex.indices(stmt.indices)})")

    def visit_Barrier(self, stmt: Barrier) -> None:
        """Add the barrier."""
        group = f'"warp", {stmt.lanes}' if stmt.lanes else '"shared"'
        self.line(f"T.tvm_storage_sync({group})")

    def visit_Prefix(self, stmt: Prefix) -> None:
        """Add the running sum and the body that uses it."""
        amount = self.ex.count(stmt.amount)
        with self.names.scope():
            name = self.names.give(stmt.var)
            self.suite(f"with T.prefix({amount}) as {name}:", stmt.body)

    def visit_SpIter(self, stmt: SpIter) -> None:
        """Add the sparse iteration."""
        domains = ", ".join(map(self.domain, stmt.domains))
        with self.names.scope():
            variables = ", ".join(map(self.names.give, stmt.vars))
            args = f"[{domains}], {literal_text(stmt.kinds)}, {literal_text(stmt.name)}"
            with self.inside(f"with T.sp_iter({args}) as [{variables}]:"):
                if stmt.attrs:
                    self.line(f"T.sp_iter_attr({self.attrs(stmt.attrs)})")
                if stmt.init is not None:
                    self.suite("with T.init():", stmt.init)
                self.rest(stmt.body)

    def visit_Block(self, stmt: Block) -> None:
        """Add the block: its variables, its regions and its body."""
        with self.inside(f"with T.block({literal_text(stmt.name)}):"):
            for it in stmt.iters:
                self._block_iter(it)
            if stmt.where is not None:
                self.line(f"T.where({self.ex.condition(stmt.where)})")
            for word, regions in (("reads", stmt.reads), ("writes", stmt.writes)):
                if regions:
                    self.line(f"T.{word}({', '.join(map(self.region, regions))})")
            if stmt.attrs:
                self.line(f"T.block_attr({self.attrs(stmt.attrs)})")
            if stmt.init is not None:
                self.suite("with T.init():", stmt.init)
            self.rest(stmt.body)

    def _block_iter(self, it: BlockIter) -> None:
        kind = "spatial" if it.kind == "S" else "reduce"
        args = f"{self.ex.count(it.extent)}, {self.ex.count(it.value)}"
        self.line(f"{self.names.give(it.var)} = T.axis.{kind}({args})")

    def visit_Merge(self, stmt: Merge) -> None:
        """Add the co-iteration and its cases."""
        cursors = []
        for cursor in stmt.cursors:
            indices = "None" if cursor.indices is None else self.names.of(cursor.indices)
            ends = f"{self.ex.count(cursor.begin)}, {self.ex.count(cursor.end)}"
            cursors.append(f"T.cursor({indices}, {ends})")
        args = ", ".join([literal_text(stmt.kind), *cursors])
        with self.names.scope():
            bound: Sequence[Var] = [stmt.coordinate, *(cursor.pos for cursor in stmt.cursors)]
            variables = ", ".join(map(self.names.give, bound))
            with self.inside(f"with T.merge({args}) as [{variables}]:"):
                for case in stmt.cases:
                    marks = ", ".join(str(int(mark)) for mark in case.present)
                    with self.at(case):
                        self.suite(f"with T.case({marks}):", case.body)

    # -- parts --------------------------------------------------------------------------------

    def region(self, region: Region) -> str:
        """Return ``A[i, b : b + e]``."""
        pairs = zip(region.begins, region.extents, strict=True)
        inside = ", ".join(self._range(begin, extent) for begin, extent in pairs)
        return f"{self.names.of(region.buffer)}[{inside or '()'}]"

    def _range(self, begin: Expr | None, extent: Expr | None) -> str:
        if begin is None or extent is None:
            return "_"
        if _is_literal(extent, 1):
            return self.ex.alone(begin)
        if _is_literal(begin, 0):
            return f"0:{self.ex.count(extent)}"
        low = self.ex.summand(begin)
        return f"{low} : {low} + {self.ex.term(extent)}"

    def domain(self, domain: Domain) -> str:
        """Return a domain of an sp_iter."""
        match domain:
            case Axis():
                return self.names.of(domain)
            case Attach(axis=axis, to=to):
                return f"T.attach({self.names.of(axis)}, {self.names.of(to)})"
            case Fuse(axes=axes) | Flatten(axes=axes):
                word = "fuse" if isinstance(domain, Fuse) else "flatten"
            case _:
                word = "union" if isinstance(domain, Union) else "intersect"
                return f"T.{word}({', '.join(map(self.domain, domain.parts))})"
        return f"T.{word}({', '.join(map(self.names.of, axes))})"

    def attrs(self, attrs: Attrs) -> str:
        """Return attributes as a dict."""
        return literal_text(dict(attrs))

    def tuple_of(self, parts: Sequence[str]) -> str:
        """Return *parts* as a tuple."""
        return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"

    def buffer_call(self, buffer: AnyBuffer) -> str:
        """Return the call that declares or allocates *buffer*."""
        verb = "alloc" if buffer.data is None else "match"
        args = [] if buffer.data is None else [self.names.of(buffer.data)]
        if isinstance(buffer, Buffer):
            args.append(self.tuple_of([self.ex.alone(size) for size in buffer.shape]))
        else:
            args.append(self.tuple_of([self.names.of(axis) for axis in buffer.axes]))
        args.append(literal_text(str(buffer.dtype)))
        if isinstance(buffer, SparseBuffer):
            word = "sparse_buffer"
            if literal_text(buffer.fill) != "0":
                args.append(f"fill={literal_text(buffer.fill)}")
            if buffer.extra_storage:
                args.append(f"extra_storage={buffer.extra_storage}")
        else:
            word = "buffer"
            if buffer.strides is not None:
                strides = self.tuple_of([self.ex.alone(size) for size in buffer.strides])
                args.append(f"strides={strides}")
        if buffer.scope != "global":
            args.append(f"scope={literal_text(buffer.scope)}")
        if buffer.distinct:
            args.append("distinct=True")
        return f"T.{verb}_{word}({', '.join(args)})"

    def axis_call(self, axis: Axis) -> str:
        """Return the call that declares *axis*."""
        args = [] if axis.parent is None else [self.names.of(axis.parent)]
        length = self.ex.alone(axis.length)
        if axis.kind == "dense_fixed":
            args.append(length)
        else:
            size = axis.nnz_cols if axis.kind == "sparse_fixed" else axis.nnz
            args.append(f"({length}, {'None' if size is None else self.ex.alone(size)})")
        indptr, indices = (
            self.names.by_node.get(var, "None") if var else "None"
            for var in (axis.indptr, axis.indices)
        )
        if axis.kind != "dense_fixed":
            arrays = {"dense_variable": indptr, "sparse_fixed": indices}
            args.append(arrays.get(axis.kind, f"({indptr}, {indices})"))
        if axis.idtype != int32:
            args.append(f"idtype={literal_text(str(axis.idtype))}")
        args += [f"{name}=False" for name in ("sorted", "unique") if not getattr(axis, name)]
        args += [f"{name}=True" for name in ("padded", "shifted", "hashed") if getattr(axis, name)]
        return f"T.{axis.kind}({', '.join(args)})"


def _is_literal(expr: Expr, value: int) -> bool:
    return isinstance(expr, Const) and expr.type == int64 and expr.value == value
