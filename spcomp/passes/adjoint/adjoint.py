"""I to I, before the route: the program of the gradients of a program in coordinate space.

From the last update to the first, the gradient of the element that is updated is passed to the
elements that its value reads. Each is a sparse iteration over the same domains, in which the axes
are reduced that are no index of the element.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from spcomp.dtypes import float32, handle, int32, int64
from spcomp.errors import ArgumentError, nearest_or_all
from spcomp.ir.access import Load, Stored
from spcomp.ir.analysis.derivatives import of_extreme, of_product
from spcomp.ir.analysis.names import Names
from spcomp.ir.analysis.reduction import Combiner, identity
from spcomp.ir.axis import AnyBuffer, Axis, SparseBuffer
from spcomp.ir.coordinate import SpIter
from spcomp.ir.expr import BinOp, Const, Expr, Select, UnOp, Var, cast, const
from spcomp.ir.places import at_place
from spcomp.ir.program import CoordFunc
from spcomp.ir.rewrite import substitute
from spcomp.ir.stmt import Alloc, Evaluate, If, Stmt, Store, seq
from spcomp.ir.structural import expr_equal
from spcomp.ir.verify.program import verify
from spcomp.ir.visitor import walk
from spcomp.passes.adjoint.partials import Functions, Term, expr_of, is_active, partials
from spcomp.passes.adjoint.updates import Nest, Update, Updates, refuse, updates
from spcomp.passes.decompose.preprocess import remove_unused_args


def script_adjoint(func: CoordFunc, wrt: Sequence[str]) -> CoordFunc:
    """Return the program of the gradients of *func* with respect to the buffers *wrt*.

    It takes the buffers of *func* whose values or patterns it needs, results among them, and
    ``grad_C`` for each result C that depends on *wrt*; it returns ``grad_A`` for each A of *wrt*.
    Raises ScriptError where *func* has no derivative, ArgumentError for a wrong name.
    """
    return _Adjoint(func, updates(func), wrt).func()


@dataclass(slots=True)
class _Adjoint:
    source: CoordFunc
    updates: Updates
    names_wrt: Sequence[str]
    names: Names = field(init=False)
    grads: dict[AnyBuffer, SparseBuffer] = field(default_factory=dict)
    allocated: list[AnyBuffer] = field(default_factory=list)
    body: list[Stmt] = field(default_factory=list)
    once: set[AnyBuffer] = field(default_factory=set)  # written by one statement, which starts it

    def func(self) -> CoordFunc:
        """Return the program of the gradients."""
        source = self.source
        self.names = Names(source)
        wrt = [self._operand(name) for name in self.names_wrt]
        if not wrt or len({*wrt}) < len(wrt):
            raise ArgumentError(f"argument wrt: got {self.names_wrt!r}, expected different buffers")
        active = self._active(wrt)
        written = {update.buffer for update in self.updates.list}
        results = [b for b in source.buffers if b in active and b in written]
        if not results:
            last = self.updates.tops[-1] if self.updates.tops else source.body
            raise refuse(f"no result depends on {', '.join(self.names_wrt)} by a derivative", last)
        self._check(active)
        incoming = {b: self._gradient(b, self.names.var(f"g_{b.name}", handle)) for b in results}
        reads = [(u, load) for u in self.updates.list for load in _reads(u, active)]
        counts = Counter(load.buffer for _, load in reads)
        self.once = {x.buffer for u, x in reads if counts[x.buffer] == 1 and _covers(x, u.nest)}
        self.once -= incoming.keys()
        for buffer in active:
            if buffer in incoming and not counts[buffer]:
                self.grads[buffer] = incoming[buffer]
            elif buffer not in wrt:
                self.grads[buffer] = self._local(buffer, incoming.get(buffer))
        outgoing = [self._gradient(b, self.names.var(f"g_{b.name}", handle)) for b in wrt]
        self.grads |= dict(zip(wrt, outgoing, strict=True))
        self._reverse(wrt, active)
        body = seq(*self._recomputed(), *self.body)
        for buffer in reversed(self.allocated):
            body = Alloc(buffer, body)
        buffers = (*source.buffers, *incoming.values(), *outgoing)
        params = (*source.params, *(b.data for b in (*incoming.values(), *outgoing) if b.data))
        name = self.names.unique(f"grad_{source.name}")
        attrs = tuple((k, v) for k, v in source.attrs if k != "global_symbol")
        result = source.replace(name=name, params=params, buffers=buffers, body=body, attrs=attrs)
        result = remove_unused_args(result)
        verify(result, "adjoint")
        return result

    # -- what is derived ----------------------------------------------------------------------

    def _operand(self, name: str) -> AnyBuffer:
        """Return the buffer *name*, which nothing writes; raises ArgumentError."""
        written = {update.buffer for update in self.updates.list}
        operands = {b.name: b for b in self.source.buffers if b not in written}
        if name not in operands:
            raise ArgumentError(
                f"argument wrt: {name} is no operand of {self.source.name}",
                hint=nearest_or_all(name, operands),
            )
        if not operands[name].dtype.is_float:
            raise ArgumentError(
                f"argument wrt: {name} is of {operands[name].dtype}, which has no gradient"
            )
        return operands[name]

    def _active(self, wrt: Sequence[AnyBuffer]) -> list[AnyBuffer]:
        """Return the buffers that depend on *wrt* by a derivative, and *wrt*, in order."""
        active = list(wrt)
        for update in self.updates.list:
            if update.buffer not in active and is_active(update.value, active):
                active.append(update.buffer)
        return active

    def _check(self, active: Sequence[AnyBuffer]) -> None:
        """Raise ScriptError where the order of updates, or a pattern, has no adjoint."""
        begun: dict[AnyBuffer, list[Update]] = {}
        read: dict[AnyBuffer, Stmt] = {}
        for update in self.updates.list:
            name, before = update.buffer.name, begun.setdefault(update.buffer, [])
            if read.get(update.buffer, update.top) is not update.top:
                raise refuse(f"{name} is written after it was read", update.at)
            for buffer in _buffers([Evaluate(update.value), *map(Evaluate, update.nest.conds)]):
                read.setdefault(buffer, update.top)
            starts = any(
                top is update.top and store.buffer is update.buffer
                for top, store in self.updates.inits
            )
            again = starts and any(other.top is not update.top for other in before)
            if again or not all(_follows(update, other) for other in before):
                raise refuse(f"{name} is assigned twice", update.at)
            before.append(update)
        for update in (u for u in self.updates.list if u.buffer in active):
            self._check_start(update, active)
        for buffer in active:
            if not isinstance(buffer, SparseBuffer):
                raise refuse(f"{buffer.name} has no axes", self.source.body)
            if any(axis.is_assembled for axis in buffer.axes):
                raise refuse(f"the pattern of {buffer.name} is a result", self.source.body)

    def _check_start(self, update: Update, active: Sequence[AnyBuffer]) -> None:
        """Raise ScriptError if *update* combines what has no gradient with what it starts with."""
        stores = [store for _, store in self.updates.inits if store.buffer is update.buffer]
        if update.op in ("and", "or"):
            raise refuse(f"{update.op} of floats has none", update.at)
        if any(is_active(store.value, active) for store in stores):
            raise refuse("the initial value depends on an operand", stores[0])
        if update.op not in ("min", "max", "*") or (
            update.op != "*" and isinstance(update.value, Load)
        ):
            return
        neutral = identity(update.op, update.value.dtype).value
        values = [store.value for store in stores]
        if not values or not all(isinstance(v, Const) and v.value == neutral for v in values):
            hint = f"start with {neutral}, and combine the result with the other value afterwards"
            raise refuse(f"{update.buffer.name} does not start with {neutral}", update.at, hint)

    # -- buffers ------------------------------------------------------------------------------

    def _gradient(self, buffer: AnyBuffer, data: Var | None) -> SparseBuffer:
        assert isinstance(buffer, SparseBuffer)
        name = self.names.unique(f"grad_{buffer.name}")
        return buffer.replace(name=name, data=data, fill=0, scope="global", extra_storage=0)

    def _local(self, buffer: AnyBuffer, incoming: SparseBuffer | None) -> SparseBuffer:
        """Return an allocated gradient of *buffer*, which starts as *incoming* or zero."""
        local = self._gradient(buffer, None)
        self.allocated.append(local)
        if buffer not in self.once:
            self.body.append(self._fill(local, incoming))
        return local

    def _noted(self, wish: str, update: Update, value: Expr, op: Combiner) -> Load:
        """Return the element beside that of *update*, of a new buffer, that combines *value*."""
        like = update.buffer
        assert isinstance(like, SparseBuffer)
        name = self.names.unique(f"{like.name}_{wish}")
        buffer = like.replace(name=name, data=None, dtype=value.dtype, fill=0, scope="global")
        self.allocated.append(buffer)
        start, element = identity(op, value.dtype), Load(buffer, update.indices)
        combined = Store(buffer, update.indices, BinOp(op, element, value))
        if not _covers(element, update.nest):
            self.body.append(self._fill(buffer, start))
            self.body.append(self._iteration(update.nest, combined, name, None))
        else:
            self.body.append(self._iteration(update.nest, combined, name, start))
        return element

    def _fill(self, buffer: SparseBuffer, value: SparseBuffer | Const | None) -> Stmt:
        """Return the iteration that sets each stored element of *buffer*."""
        loop_vars = tuple(Var(axis.name.lower(), int64) for axis in buffer.axes)
        start: Expr = value if isinstance(value, Const) else const(0, buffer.dtype)
        if isinstance(value, SparseBuffer):
            start = Load(value, loop_vars)
        kinds, name = "S" * len(loop_vars), self.names.unique(f"{buffer.name}_start")
        return SpIter(loop_vars, buffer.axes, kinds, name, None, Store(buffer, loop_vars, start))

    # -- statements ---------------------------------------------------------------------------

    def _reverse(self, wrt: Sequence[AnyBuffer], active: Sequence[AnyBuffer]) -> None:
        """Add the statements that pass gradients down, from the last update to the first."""
        self.body += [self._fill(self.grads[b], None) for b in wrt if b not in self.once]
        for update in reversed(self.updates.list):
            if update.buffer in active and is_active(update.value, active):
                found: list[tuple[Load, Expr]] = []
                partials(update.value, self._incoming(update), active, found)
                self.body += [self._step(update, load, grad) for load, grad in found]

    def _incoming(self, update: Update) -> Expr:
        """Return the gradient of the value of *update*."""
        element = Load(self.grads[update.buffer], update.indices)
        g: Expr = cast(element, update.value.dtype)
        if update.op in ("min", "max", "*"):
            update = self._with_stored_terms(update)
        if update.op in ("min", "max"):
            wins = BinOp("==", update.value, cast(update.element, update.value.dtype))
            ties = self._count("ties", update, wins)
            share = of_extreme(Functions(), Term(g), Term(wins), ties)
            return expr_of(share, g.dtype)
        if update.op == "*":
            value, dtype = update.value, update.value.dtype
            is_zero = BinOp("==", value, const(0, dtype))
            zeros = self._count("zeros", update, is_zero)
            factor = Select(is_zero, identity("*", dtype), value)
            rest = Term(self._noted("rest", update, factor, "*"))
            return expr_of(of_product(Functions(), Term(g), Term(value), zeros, rest), dtype)
        return g

    def _with_stored_terms(self, update: Update) -> Update:
        """Return *update* with a value that is stored: computed again, it may be rounded otherwise.

        Then what it combines to is computed again, too.
        """
        if isinstance(update.value, Load):
            return update
        axes = tuple(_axes_over(update.nest).values())
        if not axes or any(axis.is_assembled for axis in axes):
            hint = "store the terms in a buffer first, and reduce that"
            raise refuse(f"{update.op} of computed terms over these domains", update.at, hint)
        name, dtype = self.names.unique(f"{update.buffer.name}_terms"), update.value.dtype
        terms = SparseBuffer(name, None, axes, dtype)
        self.allocated.append(terms)
        element = Load(terms, update.nest.vars)
        store = Store(terms, update.nest.vars, update.value)
        self.body.append(self._iteration(update.nest, store, name, None))
        if update.op not in ("min", "max"):  # the product itself is not needed
            return replace(update, value=element)
        result = self._noted("again", update, element, update.op)
        return replace(update, buffer=result.buffer, value=element)

    def _count(self, wish: str, update: Update, cond: Expr) -> Term:
        """Return how often *cond* holds for the element of *update*, in the type of its value."""
        one = Select(cond, const(1, int32), const(0, int32))
        return Term(cast(self._noted(wish, update, one, "+"), update.value.dtype))

    def _step(self, update: Update, load: Load, grad: Expr) -> Stmt:
        """Return the iteration that adds *grad* to the gradient of *load*."""
        buffer = self.grads[load.buffer]
        element = Load(buffer, load.indices, span=load.span)
        wide = float32 if buffer.dtype.bits == 16 else buffer.dtype
        total = BinOp("+", cast(element, wide), cast(grad, wide), span=load.span)
        store: Stmt = Store(buffer, load.indices, cast(total, buffer.dtype), span=update.at.span)
        if not _is_stored(load, update.nest):
            store = If(Stored(load), store)
        name = f"{buffer.name}_of_{update.buffer.name}"
        start = const(0, buffer.dtype) if load.buffer in self.once else None
        return self._iteration(update.nest, store, name, start)

    def _iteration(self, nest: Nest, body: Stmt, wish: str, start: Const | None) -> Stmt:
        """Return *body* below the iterations of *nest*; elements start as *start*."""
        for cond in reversed(nest.conds):
            body = If(cond, body)
        fresh = {var: Var(var.name, var.dtype) for var in nest.vars}
        body = substitute(body, fresh)
        store = next(n for n in walk(body) if isinstance(n, Store))
        kinds = "".join("S" if any(i is v for i in store.indices) else "R" for v in fresh.values())
        init = None if start is None else Store(store.buffer, store.indices, start)
        name = self.names.unique(wish)
        it = SpIter(tuple(fresh.values()), nest.domains, kinds, name, init, body)
        return at_place(it, store.span)

    def _recomputed(self) -> list[Stmt]:
        """Return the statements of the program that compute the local buffers that are needed."""
        needed = _buffers(self.body)
        kept: list[Stmt] = []
        for top in reversed(self.updates.tops):
            writes = {n.buffer for n in walk(top) if isinstance(n, Store)}
            if writes & needed & {*self.updates.locals}:
                if others := writes - {*self.updates.locals}:
                    name = min(other.name for other in others)
                    raise refuse(
                        f"this computes {name} beside what has to be computed again",
                        top,
                        "write the two as iterations one after the other",
                    )
                kept.append(top)
                needed |= _buffers([top])
        self.allocated = [*(b for b in self.updates.locals if b in needed), *self.allocated]
        return kept[::-1]


def _reads(update: Update, active: Sequence[AnyBuffer]) -> list[Load]:
    """Return the elements of *active* buffers by which the value of *update* has a derivative."""
    found: list[tuple[Load, Expr]] = []
    partials(update.value, const(1, update.value.dtype), active, found)
    return [load for load, _ in found]


def _buffers(stmts: Sequence[Stmt]) -> set[AnyBuffer]:
    return {n.buffer for s in stmts for n in walk(s) if isinstance(n, (Load, Store))}


def _follows(update: Update, before: Update) -> bool:
    """Whether *update* adds to what *before* left, or only one of the two happens."""
    if update.op == "+" and before.op in ("+", None):
        return True
    negated = {c.value for c in update.nest.conds if isinstance(c, UnOp) and c.op == "not"}
    return any(cond in negated for cond in before.nest.conds)


def _axes_over(nest: Nest) -> dict[Expr | None, Axis]:
    """Return the axis that each variable of *nest* runs over, if all domains are axes."""
    axes = [domain for domain in nest.domains if isinstance(domain, Axis)]
    return dict(zip(nest.vars, axes, strict=True)) if len(axes) == len(nest.domains) else {}


def _is_stored(load: Load, nest: Nest) -> bool:
    """Whether *load* certainly reads what its buffer stores: it is dense, or iterated."""
    assert isinstance(load.buffer, SparseBuffer)
    over = _axes_over(nest)
    return all(
        axis.kind == "dense_fixed" or over.get(index) is axis
        for axis, index in zip(load.buffer.axes, load.indices, strict=True)
    )


def _covers(load: Load, nest: Nest) -> bool:
    """Whether an initialization in *nest* reaches every element of the buffer of *load*."""
    assert isinstance(load.buffer, SparseBuffer)
    over = _axes_over(nest)
    found = [over.get(index) for index in load.indices]
    pairs = zip(found, load.buffer.axes, strict=True)
    same = (a is not None and (a is b or expr_equal(a.length, b.length)) for a, b in pairs)
    return len({*load.indices}) == len(load.indices) and all(same) and _is_stored(load, nest)
