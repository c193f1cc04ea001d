"""Around the route: the formats requested for arguments and results of index notation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from spcomp.errors import ArgumentError, FormatError
from spcomp.formats.format import Format
from spcomp.formats.hyb import composable
from spcomp.formats.rules import ComposableFormat, rows_of
from spcomp.notation.layout import Layout, parse_layout
from spcomp.notation.prepare import Prepared

Formats: TypeAlias = Mapping[str, str | Format | ComposableFormat]  # by the names of tensors


def requested_layouts(
    formats: Formats, prepared: Prepared
) -> tuple[dict[str, Layout], dict[str, ComposableFormat]]:
    """Return the layout of each tensor in *formats*, and the formats of several parts among them.

    The layout of a tensor that is stored in parts is compressed rows. Raises ArgumentError.
    """
    targets = [stmt.target.name for stmt in prepared.program.statements if not stmt.is_dense]
    tensors = dict.fromkeys((*prepared.arguments, *targets))
    unknown = sorted(set(formats) - {*tensors})
    if unknown:
        raise ArgumentError(
            f"argument formats: the program has no {unknown[0]}",
            hint=f"it has {', '.join(tensors)}",
        )
    layouts: dict[str, Layout] = {}
    parts: dict[str, ComposableFormat] = {}
    for name, requested in formats.items():
        if requested in ("lil", "dok"):
            raise ArgumentError(
                f"argument formats: {requested} is no format that programs iterate",
                hint=f'ask for "csr", in which an argument in {requested} is iterated anyway;'
                " spcomp.convert makes one of a result",
            )
        rank, layout = prepared.ranks[name], composable(requested)
        if layout is None:
            assert not isinstance(requested, ComposableFormat)
            layouts[name] = parse_layout(requested, rank)
            continue
        if name in prepared.targets:
            raise ArgumentError(
                f"argument formats: {name} is a result, which is not made in parts",
                hint=f"convert it, spcomp.convert({name}, ...)",
            )
        layouts[name] = Format(rows_of(max(rank, 1)))
        parts[name] = _require_rank(name, layout, rank)
    return layouts, parts


def _require_rank(name: str, layout: ComposableFormat, rank: int) -> ComposableFormat:
    from spcomp.tensors.parts.parts import refuse_rank

    try:
        refuse_rank(layout, rank)
    except FormatError:
        raise ArgumentError(
            f"argument formats: {layout} is no format of {name}, which has {rank} dimensions",
            hint="it stores compressed rows, of matrices or, ell3d, of three dimensions",
        ) from None
    return layout
