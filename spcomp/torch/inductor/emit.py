"""In graphs of torch.compile: a program along edges as text in the script language."""

from __future__ import annotations

from typing import Any

from spcomp.torch.inductor.program import NARROW, Buffer, Program, Statement

_START = {"sum": "0.0", "max": 'T.{dtype}("-inf")', "min": 'T.{dtype}("inf")'}
_EDGES = (
    'J = T.sparse_variable(I, (n, nnz), (indptr, indices), "int32", sorted=False, unique=False)'
)
_ADD = {"sum": "{0} + {1}", "max": "T.max({0}, {1})", "min": "T.min({0}, {1})"}


def script(program: Program) -> str:
    """Return *program* in the script language; index arrays are int32.

    Arguments are ``indptr`` and ``indices`` of the edges by place: rows of the source, or if there
    is none, positions of edges; ``order``, these positions, if both are read; the inputs, the
    results, and what is kept for each edge.
    """
    return _Text(program).text()


class _Text:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.axes: dict[tuple[str, int], str] = {}  # by size, and which of this size
        reads_edges = any(lead == "E" for lead, _ in program.inputs)
        self.has_order = reads_edges and program.source is not None
        self.dtype = str(program.dtype).removeprefix("torch.")

    def text(self) -> str:
        program = self.program
        body = [line for at, s in enumerate(program.statements) for line in self._statement(s, at)]
        arrays = [
            *program.inputs.values(),
            *program.results.values(),
            *program.stored.values(),
        ]
        buffers = [self._buffer(buffer) for buffer in arrays]
        order = self.has_order
        sizes = [
            f"{name} = T.dense_fixed({key[0] if _is_fixed(key[0]) else name.lower()})"
            for key, name in self.axes.items()
        ]
        lines = [
            'T.func_attr({"fuse_rows": 1})',
            "I = T.dense_fixed(m)",
            _EDGES,
            "N = T.dense_fixed(n)",
            *(["E = T.dense_fixed(e)"] if order else []),
            *sizes,
            *(['ORDER = T.match_sparse_buffer(order, (I, J), "int32")'] if order else []),
            *buffers,
            *body,
        ]
        head = "from spcomp import script as T\n\n\n@T.prim_func\n"
        head += f"def edges({', '.join(self._parameters(arrays))}) -> None:\n"
        return head + "".join(f"    {line}\n" for line in lines)

    def _parameters(self, arrays: list[Buffer]) -> list[str]:
        handles = ["indptr", "indices", *(["order"] if self.has_order else [])]
        handles += [buffer.name.lower() for buffer in arrays]
        sizes = ["m", "n", "nnz", *(["e"] if self.has_order else [])]
        sizes += [name.lower() for key, name in self.axes.items() if not _is_fixed(key[0])]
        return [*(f"{name}: T.handle" for name in handles), *(f"{name}: T.int64" for name in sizes)]

    def _statement(self, stmt: Statement, number: int) -> list[str]:
        at_edge = "ORDER[i, j]" if self.has_order else "j"
        to, term = stmt.to, stmt.term.replace("@", at_edge)
        lead = 2 if stmt.along else 1
        axes = ", ".join([*"IJ"[:lead], *self._dims(n for _, n in stmt.loops)])
        names = ", ".join([*"ij"[:lead], *(name for name, _ in stmt.loops)])
        outer = "SS" if stmt.inner or not stmt.reduce else "SR"
        kinds = f"{outer[:lead]}{'S' * (len(stmt.loops) - stmt.inner)}{'R' * stmt.inner}"
        lines = [f'with T.sp_iter([{axes}], "{kinds}", "step{number}") as [{names}]:']
        if stmt.reduce:
            start = _START[stmt.reduce].format(dtype=self.dtype)
            lines += ["    with T.init():", f"        {to} = {start}"]
            term = _ADD[stmt.reduce].format(to, term)
        return [*lines, f"    {to} = {term}"]

    def _buffer(self, buffer: Buffer) -> str:
        lead = {"I": ["I"], "J": ["I", "J"], "N": ["N"], "": []}
        lead["E"] = ["E"] if self.has_order else ["N"]
        axes = [*lead[buffer.lead], *self._dims(buffer.sizes)]
        text = f"({axes[0]},)" if len(axes) == 1 else f"({', '.join(axes)})"
        name = buffer.name
        return f'{name} = T.match_sparse_buffer({name.lower()}, {text}, "{self.dtype}")'

    def _dims(self, sizes: Any) -> list[str]:
        """Return axes of these *sizes*, of which no two are the same."""
        found: list[str] = []
        texts = [str(size) for size in sizes]
        for at, text in enumerate(texts):
            key = text, texts[:at].count(text)
            found.append(self.axes.setdefault(key, f"D{len(self.axes)}"))
        return found


def _is_fixed(size: str) -> bool:
    """Whether code is compiled for this *size*, and not for any."""
    return size.isdigit() and int(size) <= NARROW
