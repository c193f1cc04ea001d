"""Around the route: index notation over matrices that are stored in formats of several parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from spcomp.compiler.convert import is_parts
from spcomp.errors import ArgumentError, FormatError, LoweringError, SpcompError
from spcomp.formats.format import Format
from spcomp.formats.hyb import composable
from spcomp.formats.library import bsr, dbsr
from spcomp.formats.rules import ComposableFormat, Kept, rows_of
from spcomp.notation.direct import adds_products
from spcomp.notation.layout import Layout, named
from spcomp.notation.nodes import accesses

if TYPE_CHECKING:
    from spcomp.compiler.compile import Options
    from spcomp.compiler.formats import FormatKernel
    from spcomp.compiler.formats_choose import ChoosingKernel
    from spcomp.compiler.notation import Planned
    from spcomp.notation.prepare import Prepared
    from spcomp.notation.semiring import Semiring

Formats: TypeAlias = Mapping[str, ComposableFormat]  # by the names of operands
LARGEST = 64  # values of a block: one element at least is in it


def asked_for(
    formats: Mapping[str, str | Format | ComposableFormat], prepared: Prepared
) -> tuple[dict[str, Layout], dict[str, ComposableFormat]]:
    """Return the layout of each tensor in *formats*, and the formats of several parts among them.

    What is to be stored in parts is compressed by rows before. Raises ArgumentError.
    """
    own = [stmt.target.name for stmt in prepared.program.statements if not stmt.is_dense]
    known = dict.fromkeys((*prepared.arguments, *own))
    unknown = sorted(set(formats) - {*known})
    if unknown:
        raise ArgumentError(
            f"argument formats: the program has no {unknown[0]}", hint=f"it has {', '.join(known)}"
        )
    layouts: dict[str, Layout] = {}
    parts: dict[str, ComposableFormat] = {}
    for name, given in formats.items():
        if given in ("lil", "dok"):
            raise ArgumentError(
                f"argument formats: {given} is no format that programs iterate",
                hint=f'ask for "csr", in which an argument in {given} is iterated anyway;'
                " spcomp.convert makes one of a result",
            )
        rank, layout = prepared.ranks[name], composable(given)
        if layout is None:
            assert not isinstance(given, ComposableFormat)
            layouts[name] = named(given, rank)
            continue
        if name in prepared.targets:
            raise ArgumentError(
                f"argument formats: {name} is a result, which is not made in parts",
                hint=f"convert it, spcomp.convert({name}, ...)",
            )
        layouts[name] = Format(rows_of(max(rank, 1)))
        parts[name] = _fitting(name, layout, rank)
    return layouts, parts


def _fitting(name: str, layout: ComposableFormat, rank: int) -> ComposableFormat:
    from spcomp.compiler.formats_parts import refuse_rank

    try:
        refuse_rank(layout, rank)
    except FormatError:
        raise ArgumentError(
            f"argument formats: {layout} is no format of {name}, which has {rank} dimensions",
            hint="it stores compressed rows, of matrices or, ell3d, of three dimensions",
        ) from None
    return layout


def takes(layout: ComposableFormat | None, given: Any) -> bool:
    """Whether *given* is in parts as a kernel takes it that stores them in *layout*."""
    if layout is None or not is_parts(given):
        return False
    return bool(given.format == layout) or (layout.is_open and type(given.format) is type(layout))


def whole(given: Any) -> Any:
    """Return *given*, what is in parts as the csr array, or Tensor, that it holds."""
    return given.whole() if is_parts(given) else given


def shown(kernel: Any, stored: Formats) -> dict[str, str]:
    """Return what is said of the operands that *kernel* has *stored*, as it chose them last."""
    chosen = getattr(kernel, "last_chosen", stored)
    return {
        name: f"{layout}, iterated as csr" if isinstance(chosen[name], Kept) else str(chosen[name])
        for name, layout in stored.items()
    }


def in_parts(
    planned: Planned, asked: Formats, given: Formats, options: Options
) -> FormatKernel | ChoosingKernel | None:
    """Return the Kernel with operands in the formats *asked* for and, where it can be, *given*.

    None where there are none. Raises FormatError for those asked for that the program cannot have.
    """
    made: FormatKernel | ChoosingKernel | None = None
    formats: dict[str, ComposableFormat] = {}
    own = {name: layout for name, layout in given.items() if layout != Kept()}
    for name, layout in {**asked, **own}.items():
        try:
            _refuse_assembled(planned, name)
            made = _kernel(planned.func, {**formats, name: layout}, options)
        except (FormatError, LoweringError) as error:
            if name in asked:
                raise _refused(name, layout, error) from None
        else:
            formats[name] = layout
    return made


def _kernel(func: Any, formats: Formats, options: Options) -> FormatKernel | ChoosingKernel:
    from spcomp.compiler.compile import kernel_of
    from spcomp.compiler.formats import Decomposed, FormatKernel, decompose
    from spcomp.compiler.formats_choose import ChoosingKernel

    program = decompose(func, **formats)
    if isinstance(program, Decomposed):
        return FormatKernel(program, kernel_of(program.func, options))
    return ChoosingKernel(program, options)


def _refuse_assembled(planned: Planned, name: str) -> None:
    for plan in planned.plans:
        reads = any(access.name == name for access in accesses(plan.stmt.value))
        if reads and plan.output.is_assembled:
            raise FormatError(f"{plan.stmt.target.name} is assembled row by row")


def _refused(name: str, layout: ComposableFormat, error: SpcompError) -> FormatError:
    own, _, reason = error.message.partition(" cannot be decomposed: ")
    return FormatError(
        f"argument formats: {name} cannot be stored as {layout} in this program: {reason or own}",
        hint=f"parts of {name} are iterated by themselves, into a dense result or one with the"
        ' pattern of it: ask for a dense result, split the statement, or ask for "csr"',
    )


def in_blocks(planned: Planned, wanted: Mapping[str, Layout], semiring: Semiring) -> Formats:
    """Return the format of the one sparse matrix of *planned*, if blocks are *wanted* and pay.

    That is in a sum of products with dense operands, into a dense result. Else the matrix is
    iterated as csr: blocks are levels here, which loops cannot run over.
    """
    name = _blocked(planned, wanted)
    if name is None or not adds_products(planned.plans[0].stmt, semiring):
        return {}
    rows, columns = (kind.size or 1 for kind in wanted[name].kinds[2:])
    blocks = bsr if wanted[name].levels[0] == "dense" else dbsr
    return {name: blocks((rows, columns))}


def _blocked(planned: Planned, wanted: Mapping[str, Layout]) -> str | None:
    """The sparse matrix of a program that has no other, if it is asked for in blocks."""
    sparse = {n: a.operand for n, a in planned.arguments.items() if not a.operand.layout.is_dense}
    if len(sparse) != 1 or len(planned.plans) != 1:
        return None
    ((name, operand),) = sparse.items()
    plan, blocks = planned.plans[0], wanted.get(name)
    own = [access for access in accesses(plan.stmt.value) if access.name == name]
    if blocks is None or blocks.order != (0, 1, 0, 1) or str(operand.layout) != "csr":
        return None
    if len(own) != 1 or len(set(own[0].indices)) < 2 or plan.output.storage != "dense":
        return None
    sizes = [kind.size or 1 for kind in blocks.kinds[2:]]
    known = blocks.levels[0] in ("dense", "compressed") and blocks.levels[1] == "compressed"
    return name if known and sizes[0] * sizes[1] <= LARGEST else None
