"""Under pictures: where the elements of a matrix lie, and what a format makes of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spcomp.display.density import CELLS, SIDE, density
from spcomp.display.picture import PARTS, Picture, box, drawing, label
from spcomp.errors import ArgumentError, front_door
from spcomp.tensors.conversions.elements import elements_of
from spcomp.tensors.convert import convert
from spcomp.tensors.parts.parts import Parts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from spcomp.display.density import Density

BAR, ROW, GAP = 220.0, 40.0, 28.0  # pixels


@front_door
def spy(A: Any, *, most: int = CELLS, ax: Any = None) -> Picture | Any:  # noqa: N803
    """Return a picture of where the stored elements of *A* lie: the darker, the denser.

    Args:
        A: Any matrix that ``spcomp.convert`` takes; of a vector its only row is drawn, of a tensor
            the first two dimensions, with the elements along the others put on each other.
        most: How many cells the grid in which elements are counted has along a side, at most.
        ax: matplotlib's Axes to draw on; they are returned.

    Raises:
        ArgumentError: *A* is no tensor, or has no dimension.
    """
    found = _density([_coordinates(A)], _shape(A), most)
    if ax is None:
        return found.picture()
    m, n = found.shape
    ax.imshow(found.pixels(), extent=(0, n, m, 0), interpolation="nearest", aspect="auto")
    ax.set_title(found.title())
    return ax


@front_door
def format(A: Any, layout: Any) -> Picture:  # noqa: A001, N803
    """Return a picture of *A* stored in the format *layout*: its parts in colours, and padding.

    Beside the matrix there is a bar for each part: what is filled are elements, what is empty is
    padding. Bars have the same scale.

    Args:
        A: Any matrix that ``spcomp.convert`` takes.
        layout: What ``spcomp.convert`` takes as a format, such as ``"bsr(4)"`` or
            ``spcomp.formats.hyb(2)``.

    Raises:
        ArgumentError, FormatError: as ``spcomp.convert``.
    """
    stored = convert(A, layout)
    if isinstance(stored, Parts):
        coordinates: dict[str, Sequence[Any]] = {**stored.elements()}
        slots = {name: int(part["values"].size) for name, part in stored.parts.items()}
    else:
        name = str(layout)
        coordinates = {name: _coordinates(A)}  # zeros that fill blocks are padding
        slots = {name: _slots(stored)}
    used = {name: len(columns[0]) for name, columns in coordinates.items()}
    shapes, width, height = _density(list(coordinates.values()), _shape(A), CELLS).shapes(1, 24)
    title = f"{_title(slots, used)} in {layout}"
    shapes.append(label(1, 14, title, "name"))
    for at, name in enumerate(slots):
        colour = PARTS[at % len(PARTS)]
        shapes += _bar(width + GAP, 24 + ROW * at, name, used[name], slots, colour)
    below = max(height, ROW * len(slots)) + 32
    return drawing(title, max(width + GAP + BAR + 60, 7.5 * len(title)), below, shapes)


def _bar(
    x: float, y: float, name: str, used: int, slots: Mapping[str, int], colour: str
) -> list[str]:
    """Return the bar of a part: *used* of its slots hold elements."""
    scale = BAR / max(*slots.values(), 1)
    return [
        box(x, y + 16, scale * slots[name], 12),
        box(x, y + 16, scale * used, 12, colour),
        label(x, y + 11, f"{name}: {_title({name: slots[name]}, {name: used})}"),
    ]


def _title(slots: Mapping[str, int], used: Mapping[str, int]) -> str:
    held, total = sum(used.values()), sum(slots.values())
    padding = 100 * (total - held) / total if total else 0.0
    return f"{held:,} elements, {padding:.3g} % padding"


def _slots(stored: Any) -> int:
    """Return how many values *stored*, a Tensor or a matrix of another library, has memory for."""
    values = getattr(stored, "values", None)
    if values is None or callable(values):
        values = getattr(stored, "data", stored)
    return int(getattr(values, "size", 0))


def _coordinates(x: Any) -> Sequence[Any]:
    """Return the indices of rows and of columns of the elements of *x*."""
    if isinstance(x, Parts):
        x = x.whole()
    found = elements_of(x)
    if len(found.shape) == 1:
        return found.coordinates[0] * 0, found.coordinates[0]
    return found.coordinates[:2]


def _shape(x: Any) -> tuple[int, int]:
    """Return the rows and columns of *x*; a vector is a row."""
    m, n = (1, *x.shape)[-2:] if len(x.shape) == 1 else x.shape[:2]
    return int(m), int(n)


def _density(parts: Sequence[Sequence[Any]], shape: tuple[int, int], most: int) -> Density:
    if not isinstance(most, int) or most < 1:
        raise ArgumentError(f"argument most: got {most!r}, expected a positive integer")
    return density(parts, shape, min(most, 8 * int(SIDE)))
