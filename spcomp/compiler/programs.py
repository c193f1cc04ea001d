"""Beside the route: small programs that the package itself runs, such as format conversions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from spcomp.compiler.compiled import Compiled
from spcomp.compiler.options import Options
from spcomp.ir.access import Load, Search
from spcomp.ir.axis import Buffer
from spcomp.ir.expr import Expr, Var
from spcomp.ir.func import Func
from spcomp.ir.node import Node
from spcomp.ir.rewrite import Rewriter
from spcomp.ir.stmt import Store
from spcomp.ir.visitor import walk
from spcomp.runtime.host import launch, run
from spcomp.target import Target

if TYPE_CHECKING:
    from spcomp.runtime.residents import Residents


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """A compiled function that is called directly on arrays; it does not check its arguments."""

    func: Func
    code: Compiled

    @classmethod
    def of(cls, func: Func, target: str | Target = "cpu") -> Program:
        """Return *func* compiled; it is a program without sparse iterations."""
        code = Compiled.of(func, Options.of(target, check="off"))
        return cls(next(iter(code.funcs.values())), code)

    def __call__(self, *args: Any) -> None:
        """Run on arrays and numbers, in the order of the parameters; outputs must be contiguous."""
        plain = (np.require(x, None, ("C", "A")) if isinstance(x, np.ndarray) else x for x in args)
        launch(self.func, self.code, dict(zip(self.code.interface.params, plain, strict=True)))

    def start(self, args: Sequence[Any], memory: Residents, word: int | None = None) -> None:
        """Run on Residents and numbers, in the order of the parameters, on the GPU of *memory*.

        *word*: where kernels that fail say so, instead of being waited for.
        """
        from spcomp.runtime.gpu import LoadedKernels, Queue

        kernels = self.code.loaded
        assert isinstance(kernels, LoadedKernels)
        values = dict(zip(self.code.interface.params, args, strict=True))
        queue = Queue(kernels, memory.place, word)
        run(self.code.host, self.code.funcs, queue, values, memory)

    def run(self, values: Mapping[str, Any]) -> None:
        """Run on *values*, arrays and numbers by name; those it does not take are ignored."""
        self(*(values[param.name] for param in self.func.params))


def program(make: Callable[..., Func]) -> Callable[..., Program]:
    """Return a function like *make* that returns the compiled program of its script function.

    *make* takes the dtypes and constants that the script uses. The script is read from its source
    file and compiled at the first call with these, for *target*. A wheel has that file; an
    installation with compiled Python files only has not.
    """

    @lru_cache(maxsize=512)
    def compiled(*args: Any, target: str | Target = "cpu") -> Program:
        return Program.of(make(*args), target)

    return compiled


def computed(
    func: Func,
    values: Mapping[str, Callable[[Expr], Expr]],
    arrays: Sequence[Buffer],
    scalars: Sequence[Var],
) -> Func:
    """Return *func* with its reads of the buffers named in *values* replaced by computed values.

    *values*: by buffer name, a function from an index to the value. *arrays* and *scalars*, which
    these functions use, become parameters after the others; unused arrays are left out.
    """
    body = _Computed(values).rewrite(func.body)
    used = {part.buffer for part in walk(body) if isinstance(part, Load | Store | Search)}
    buffers = tuple(buffer for buffer in (*func.buffers, *arrays) if buffer in used)
    unused = {buffer.data for buffer in func.buffers if buffer not in used}
    handles = (buffer.data for buffer in arrays if buffer in used)
    params = (*(param for param in func.params if param not in unused), *handles, *scalars)
    return func.replace(params=params, buffers=buffers, body=body)


class _Computed(Rewriter):
    def __init__(self, values: Mapping[str, Callable[[Expr], Expr]]) -> None:
        self.values = values

    def visit_Load(self, load: Load) -> Node:
        """Return the computed value in place of *load*."""
        index = load.indices[0]
        if load.buffer.name not in self.values or index is None:
            return self.visit_Node(load)
        return self.values[load.buffer.name](self.rewrite(index))
