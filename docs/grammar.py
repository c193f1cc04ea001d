"""The page on the IR: its grammar, from the classes of nodes."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from typing import TYPE_CHECKING

from spcomp.ir import access, axis, coordinate, expr, func, position, program, stmt
from spcomp.ir.node import NODES, Node

if TYPE_CHECKING:
    from types import ModuleType

# What stands at the left of a rule, the class whose kinds are at its right, and where they occur.
RULES: tuple[tuple[str, type[Node], tuple[ModuleType, ...], str], ...] = (
    ("program", func.Func, (program,), "each for one level"),
    ("stmt", stmt.Stmt, (stmt,), "at all levels"),
    ("", stmt.Stmt, (coordinate,), "coordinates only"),
    ("", stmt.Stmt, (position,), "positions only"),
    ("expr", expr.Expr, (expr, access), "at all levels"),
    ("part", Node, (position,), "of Block and Merge"),
    ("declared", Node, (axis,), "before the body"),
)
TYPES = {"Expr": "expr", "Stmt": "stmt"}
HEAD = """\
# The IR on one screen

What a program is inside of spcomp: a tree of these nodes. There is one kind of program for each level, and the levels share
most kinds of statements and expressions. This page is generated from the classes in `spcomp/ir`.

In this grammar, a field with a colon is a part of the tree: `expr`, `stmt` or the node named; `*` stands for several,
`?` for one that may be missing. The others are data: names, types, and references to what was declared. `var=` introduces a variable.

"""
EXAMPLE = """
Every node also has a `span`, the place in the source that it came from. Nodes are never changed: a pass makes new ones, and what
it does not touch stays the same object. To look at a program:

```python
from collections import Counter
from spcomp.ir.visitor import walk

print(Counter(type(node).__name__ for node in walk(csrmm)))
```

To change one, there is `Rewriter`: a method for each kind of node that changes, the rest is copied only where it has to be.

```python
from spcomp.ir.expr import BinOp
from spcomp.ir.rewrite import Rewriter

class Maximum(Rewriter):
    \"\"\"Takes the maximum where the program adds.\"\"\"

    def visit_BinOp(self, node):
        new = super().visit_Node(node)
        return new.replace(op="max") if new.op == "+" else new

changed = Maximum().rewrite(csrmm)
assert "T.max(C[i, k], A[i, j] * B[j, k])" in changed.script()
```

## What each node is

| node | what it is |
|---|---|
"""


def page() -> str:
    """Return the page."""
    lines = ["```"]
    for name, base, modules, where in RULES:
        if name and len(lines) > 1:
            lines.append("")
        lines.append(f"{'':11} # {where}")
        for number, kind in enumerate(_kinds(base, modules)):
            left = f"{name} =" if name and number == 0 else "|"
            lines.append(f"{left:>11} {_rule(kind)}")
    lines.append("```")
    shown = [kind for _, base, modules, _ in RULES for kind in _kinds(base, modules)]
    table = [f"| `{kind.__name__}` | {_first(kind)} |" for kind in dict.fromkeys(shown)]
    return HEAD + "\n".join(lines) + "\n" + EXAMPLE + "\n".join(table) + "\n"


def _kinds(base: type[Node], modules: tuple[ModuleType, ...]) -> list[type[Node]]:
    """Return the classes of nodes of *modules* that a rule about *base* lists."""
    names = {module.__name__ for module in modules}
    direct = base is Node  # neither a statement nor an expression
    return [
        kind
        for kind in NODES.values()
        if kind.__module__ in names
        and kind not in (base, program.Program)
        and (kind.__bases__ == (Node,) if direct else issubclass(kind, base))
        and not (direct and issubclass(kind, (stmt.Stmt, expr.Expr)))
    ]


def _rule(kind: type[Node]) -> str:
    shown = [
        _field(f.name, str(f.type), f.metadata.get("role"))
        for f in fields(kind)
        if f.name != "span"
    ]
    return f"{kind.__name__}({', '.join(shown)})"


def _field(name: str, kind: str, role: str | None) -> str:
    if role == "attr":
        return name
    if role == "binder":
        return f"{name}="
    many, maybe = kind.startswith("tuple["), kind.endswith("| None")
    inside = re.sub(r"^tuple\[|, \.\.\.\]|\]$| \| None", "", kind)
    return f"{name}: {TYPES.get(inside, inside)}{'*' if many else ''}{'?' if maybe else ''}"


def _first(kind: type[Node]) -> str:
    text = (inspect.getdoc(kind) or "").split("\n\n")[0].replace("\n", " ")
    return text.replace("``", "`").replace("|", "\\|")
