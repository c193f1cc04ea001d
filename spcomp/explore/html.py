"""The explorer's page as one file of HTML, which refers to nothing outside of itself."""

from __future__ import annotations

from html import escape
from importlib.resources import files
from string import Template
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spcomp.explore.page import Page


def html(page: Page, *, live: int | None = None) -> str:
    """Return *page* as HTML; *live*: a server has it, and says when this version of it changed."""
    web = files("spcomp.explore").joinpath("web")
    script, style, text = (
        web.joinpath(f"page.{kind}").read_text("utf-8") for kind in ("js", "css", "html")
    )
    data = page.to_json()
    if live is not None:
        data = f'{{"live": {live}, {data[1:]}'
    data = data.replace("<", "\\u003c")  # so that nothing in it ends the element around it
    return Template(text).substitute(
        title=escape(page.title), style=style, script=script, data=data
    )
