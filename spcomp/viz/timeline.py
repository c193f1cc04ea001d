"""Under pictures: which thread of a call was busy with which chunks, when."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from spcomp.display.picture import PARTS, box, drawing, label, line
from spcomp.errors import ArgumentError, expect, front_door
from spcomp.kernels.kernel import Kernel
from spcomp.kernels.protocol import Runnable
from spcomp.runtime.pool import Chunks, busy_share, get_num_threads, log

WIDTH, ROW, LEFT = 560.0, 30.0, 76.0  # pixels
MOST = 4000  # boxes that a picture has: of more, neighbours of one loop and thread are put together


@dataclass(frozen=True, slots=True)
class Timeline:
    """The *chunks* that a call of *name* ran on *threads* threads, in the order of time.

    Printing and notebooks show it.
    """

    name: str
    threads: int
    chunks: tuple[Chunks, ...]

    @property
    def rows(self) -> tuple[int, ...]:
        """The threads that took part, the one that began first."""
        return tuple(dict.fromkeys(chunks.thread for chunks in self.chunks))

    @property
    def loops(self) -> tuple[int, ...]:
        """The parallel loops, as the addresses of their code, in the order in which they began."""
        return tuple(dict.fromkeys(chunks.loop for chunks in self.chunks))

    @property
    def seconds(self) -> float:
        """The time from the first chunk to the end of the last."""
        if not self.chunks:
            return 0.0
        return max(chunks.stop for chunks in self.chunks) - self.chunks[0].start

    @property
    def busy(self) -> float:
        """The share of the time of all threads in which they ran chunks."""
        return busy_share(self.chunks, self.threads) or 0.0

    def __str__(self) -> str:
        what = f"{len(self.loops)} parallel loops in {self.seconds * 1e6:.1f} us"
        share = f"{self.threads} threads busy {100 * self.busy:.0f} % of it"
        lines = [f"{self.name}: {what}, {share}"]
        for at, thread in enumerate(self.rows):
            own = [chunks for chunks in self.chunks if chunks.thread == thread]
            worked = sum(chunks.stop - chunks.start for chunks in own)
            iterations = sum(chunks.end - chunks.begin for chunks in own)
            what = f"{worked * 1e6:.1f} us in {len(own)} pieces, {iterations} iterations"
            lines.append(f"  thread {at}: {what}")
        return "\n".join(lines)

    def _pieces(self) -> list[tuple[int, int, float, float]]:
        """Return the boxes of the picture: row, loop, start and stop, in seconds from the first."""
        began = self.chunks[0].start if self.chunks else 0.0
        row = {thread: at for at, thread in enumerate(self.rows)}
        loop = {function: at for at, function in enumerate(self.loops)}
        pieces = [
            (row[c.thread], loop[c.loop], c.start - began, c.stop - began) for c in self.chunks
        ]
        if len(pieces) <= MOST:
            return pieces
        gap, joined = self.seconds / WIDTH, dict[int, tuple[int, int, float, float]]()
        result = []
        for piece in pieces:
            last = joined.get(piece[0])
            if last is not None and last[1] == piece[1] and piece[2] - last[3] < gap:
                joined[piece[0]] = (*last[:3], piece[3])
                continue
            if last is not None:
                result.append(last)
            joined[piece[0]] = piece
        return [*result, *joined.values()]

    def draw(self, ax: Any) -> Any:
        """Draw a row for each thread on matplotlib's Axes *ax*, and return them."""
        for row, loop, start, stop in self._pieces():
            ax.barh(row, 1e6 * (stop - start), left=1e6 * start, color=PARTS[loop % len(PARTS)])
        ax.set(xlabel="us", ylabel="thread", title=str(self).partition("\n")[0])
        return ax

    def _repr_svg_(self) -> str:
        return self.svg

    @property
    def svg(self) -> str:
        """The picture as the text of an SVG document; pointing at a box shows its time."""
        title, *rows = str(self).splitlines()
        base = 28 + ROW * len(rows)
        shapes = [label(4, 16, title, "name")]
        shapes += [label(4, 46 + ROW * at, f"thread {at}") for at in range(len(rows))]
        scale = WIDTH / (self.seconds or 1.0)
        for row, loop, start, stop in self._pieces():
            colour = PARTS[loop % len(PARTS)]
            x, width = LEFT + start * scale, max((stop - start) * scale, 0.5)
            said = f"loop {loop + 1}: {1e6 * start:.1f} to {1e6 * stop:.1f} us"
            drawn = box(x, 30 + ROW * row, width, ROW - 8, colour)
            shapes.append(f"<g><title>{said}</title>{drawn}</g>")
        shapes.append(line(LEFT, base, LEFT + WIDTH, base))
        shapes.append(label(LEFT, base + 16, "0"))
        shapes.append(label(LEFT + WIDTH, base + 16, f"{self.seconds * 1e6:.1f} us", "number"))
        return drawing(title, LEFT + WIDTH + 24, base + 28, shapes).svg


@front_door
def timeline(kernel: Runnable, *, ax: Any = None, **args: Any) -> Timeline | Any:
    """Return which thread was busy with which chunks of parallel loops, in a call of *kernel*.

    The call is the third of three. Chunks that a thread takes together are one piece.

    Args:
        kernel: What ``spcomp.compile`` returns, for a CPU.
        ax: matplotlib's Axes to draw on; they are returned.
        args: The arguments by name, outputs excepted.

    Raises:
        ArgumentError: An argument is wrong, or the kernel is for a GPU.
    """
    expect("kernel", kernel, Runnable, "a kernel", hint="spcomp.compile returns one")
    for _ in range(2):
        kernel(**args)
    if any(part.target.kind != "cpu" for part in kernel.kernels() if isinstance(part, Kernel)):
        raise ArgumentError("timeline: the kernel is for a GPU", hint="use Nsight Systems")
    with log() as events:
        kernel(**args)
    result = Timeline(kernel.name, get_num_threads(), tuple(events))
    return result if ax is None else result.draw(ax)
