"""What ``kernel.explore()`` returns: the explorer's page, which a notebook shows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from html import escape
from typing import TYPE_CHECKING, Any

from spcomp.compiler.compiled import Compiled
from spcomp.display.picture import write_text
from spcomp.errors import ArgumentError
from spcomp.explore.html import html
from spcomp.explore.page import NOTHING, Measured, Page, view

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable

HEIGHT = 640  # pixels of the page in a notebook


@dataclass(frozen=True, slots=True)
class Explorer:
    """All stages of programs side by side; a notebook shows it, ``save`` writes it to a file."""

    page: Page

    @property
    def html(self) -> str:
        """The page as one file of HTML."""
        return html(self.page)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the page to *path*; raises FileError if that fails."""
        write_text(path, self.html)

    def _repr_html_(self) -> str:
        page = escape(self.html, quote=True)
        return (
            f'<iframe srcdoc="{page}" title="{escape(self.page.title)}" sandbox="allow-scripts"'
            f' style="width: 100%; height: {HEIGHT}px; border: 1px solid #888"></iframe>'
        )

    def __repr__(self) -> str:
        names = ", ".join(view.name for view in self.page.views)
        return f"<Explorer of {names}: save(path) writes it, a notebook shows it>"


def explorer(title: str, kernels: Iterable[Any], measured: Measured = NOTHING) -> Explorer:
    """Return the explorer of *kernels*, each of one program, which are compiled again.

    *measured*: what is known of a call of them.

    Raises SpcompError if one does not compile, and ArgumentError if there is none.
    """
    views = []
    for kernel in kernels:
        options = replace(kernel.options, debug=True)
        views.append(view(Compiled.of(kernel.program, options), kernel.name, measured))
    if not views:
        raise ArgumentError(f"{title} has no program yet", hint="call it first, or specialize it")
    return Explorer(Page(title, tuple(views)))
