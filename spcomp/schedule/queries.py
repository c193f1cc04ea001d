"""Questions to a schedule about its blocks and loops; the answers are names."""

from __future__ import annotations

from collections.abc import Iterable

from spcomp.errors import ScheduleError, front_doors
from spcomp.ir.arith.memory import reads_of, writes_of
from spcomp.ir.axis import memory_of
from spcomp.ir.expr import Expr
from spcomp.ir.func import Func
from spcomp.ir.node import Node
from spcomp.ir.position import Block
from spcomp.ir.visitor import below, walk
from spcomp.schedule.nests.nests import find_block, find_loop
from spcomp.schedule.steps.loops.annotate import Value, find_target


@front_doors
class Queries:
    """Questions about the program of a schedule; unknown names raise ScheduleError."""

    __slots__ = ()
    func: Func

    def get_child_blocks(self, target: str) -> tuple[str, ...]:
        """The blocks directly inside the block or loop *target*, in order.

        >>> stage2.get_child_blocks("csrmm0")
        ('csrmm1',)
        """
        node = find_target(self.func, target, f"get_child_blocks({target!r})")
        return tuple(block.name for block in _outermost(_inside(node)))

    def get_producers(self, block: str) -> tuple[str, ...]:
        """The blocks before *block*, in the same block, that write what it reads or writes.

        >>> stage2.decompose_reduction("csrmm1", "j").get_producers("csrmm1")
        ('csrmm1_init',)
        """
        before, node, _ = self._siblings(block, "get_producers")
        accessed = reads_of(node) | writes_of(node)
        return tuple(other.name for other in before if writes_of(other) & accessed)

    def get_consumers(self, block: str) -> tuple[str, ...]:
        """The blocks after *block*, in the same block, that read or write what it writes.

        >>> stage2.decompose_reduction("csrmm1", "j").get_consumers("csrmm1_init")
        ('csrmm1',)
        """
        _, node, after = self._siblings(block, "get_consumers")
        written = writes_of(node)
        return tuple(b.name for b in after if written & (reads_of(b) | writes_of(b)))

    def get_output_blocks(self, scope: str | None = None) -> tuple[str, ...]:
        """The blocks inside *scope* (by default, all) that write to an array of the caller.

        >>> stage2.get_output_blocks()
        ('csrmm0', 'csrmm1')
        """
        node: Node = self.func.body
        if scope is not None:
            node = find_block(self.func, scope, f"get_output_blocks({scope!r})", None).body
        arguments = {memory_of(buffer) for buffer in self.func.buffers}
        blocks = (n for n in walk(node, skip=Expr) if isinstance(n, Block))
        return tuple(block.name for block in blocks if writes_of(block) & arguments)

    def get_kind(self, loop: str) -> str:
        """How *loop* runs: serial, parallel, vectorized, unroll, or the index that it is bound to.

        >>> stage2.get_kind("i")
        'serial'
        """
        node = find_loop(self.func, loop, f"get_kind({loop!r})")
        return node.thread or node.kind

    def annotations(self, target: str) -> dict[str, Value]:
        """The annotations of the block, loop or iteration *target*, by key.

        >>> stage2.annotations("csrmm1")
        {'sparse': True}
        """
        return dict(find_target(self.func, target, f"annotations({target!r})").attrs)

    def _siblings(self, name: str, question: str) -> tuple[list[Block], Block, list[Block]]:
        """Return the block called *name*, and those before and after it in the same block."""
        node = find_block(self.func, name, f"{question}({name!r})", None)
        scopes = [self.func.body]
        scopes += [n.body for n in walk(self.func.body, skip=Expr) if isinstance(n, Block)]
        for scope in scopes:
            blocks = _outermost([scope])
            if any(block is node for block in blocks):
                at = next(k for k, block in enumerate(blocks) if block is node)
                return blocks[:at], node, blocks[at + 1 :]
        raise ScheduleError(f"{question}({name!r}): the block is nowhere")  # pragma: no cover


def _inside(node: Node) -> list[Node]:
    parts = (getattr(node, name, None) for name in ("init", "body"))
    return [part for part in parts if isinstance(part, Node)]


def _outermost(parts: Iterable[Node]) -> list[Block]:
    """The blocks in *parts* that no other block contains, in order."""
    result: list[Block] = []
    stack = list(parts)[::-1]
    while stack:
        node = stack.pop()
        if isinstance(node, Block):
            result.append(node)
            continue
        stack += [x for x in reversed(below(node)) if not isinstance(x, Expr)]
    return result
