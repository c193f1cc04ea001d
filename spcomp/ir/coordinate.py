"""Stage I, coordinate space: sparse iterations whose bodies read as dense mathematics."""

from __future__ import annotations

from typing import Any

from spcomp.ir.axis import Domain
from spcomp.ir.expr import Var
from spcomp.ir.node import attr, binder, node
from spcomp.ir.stmt import Attrs, Stmt


@node
class SpIter(Stmt):
    """``with sp_iter(domains, kinds, name) as vars``: the body once per tuple of the domains.

    *kinds* has one letter per variable, ``S`` spatial or ``R`` reduction. *vars* are int64
    coordinates. *init* runs first, once for each element of the buffers it writes that the spatial
    variables can address, each ranging over its axis's full length; then *body* runs once per
    tuple, in the order of the domains.
    """

    vars: tuple[Var, ...] = binder()
    domains: tuple[Domain, ...] = attr()
    kinds: str = attr()
    name: str = attr()
    init: Stmt | None
    body: Stmt
    attrs: Attrs = attr(default=())

    @property
    def sp_iter_vars(self) -> tuple[Var, ...]:
        """The variables, as SparseTIR calls them."""
        return self.vars

    @property
    def annotations(self) -> dict[str, Any]:
        """The attributes by name."""
        return dict(self.attrs)
