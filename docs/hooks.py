"""For mkdocs: files outside of docs/ that pages link to, as pages; tutorials as notebooks."""

from __future__ import annotations

import posixpath
import re
import runpy
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files, InclusionLevel

notebooks = runpy.run_path(str(Path(__file__).with_name("notebooks.py")))
ROOT = Path(__file__).parents[1]
ABOVE = re.compile(r"\]\(((?:\.\./)+[\w./-]+\.(?:py|md))\)")
LOADED = re.compile(r'<(?:script|img|iframe|link)[^>]+(?:src|href)="(https?:[^"]+)')
MARK = re.compile("```python (fragment|torch)\n")
RELATIVE = re.compile(r"\[([^]]+)\]\((?!https?:|#)[^)]+\)")


def on_files(files: Files, config: Any) -> Files:
    """Add each file of the repository that a page links to."""
    pages = list(files.documentation_pages())
    links = {path for page in pages for path in _above(page.src_uri, page.content_string)}
    for path in sorted(links - {"README.md"}):
        text = (ROOT / path).read_text(encoding="utf-8")
        if path.endswith(".py"):
            text = f"# {Path(path).name}\n\n```python\n{text}```\n"
        text = RELATIVE.sub(r"\1", text)  # to files that the site does not have
        file = File.generated(config, _place(path), content=text)
        file.inclusion = InclusionLevel.NOT_IN_NAV
        files.append(file)
    for page in pages:
        if page.src_uri.startswith("tutorials/"):
            text = notebooks["notebook"](page.content_string)
            files.append(File.generated(config, _notebook(page.src_uri), content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Return the text of *page* with links to such files changed to their pages.

    Listings that are pieces of programs, or need PyTorch, are marked for tests; the site shows all alike.
    """
    folder = posixpath.dirname(page.file.src_uri)

    def link(match: re.Match[str]) -> str:
        path = _path(folder, match[1])
        target = path.removeprefix("docs/") if path.startswith("docs/") else _place(path)
        return f"]({posixpath.relpath(target, folder or '.')})"

    markdown = ABOVE.sub(link, markdown)
    markdown = MARK.sub("```python\n", markdown)
    if folder == "tutorials":
        name = posixpath.basename(_notebook(page.file.src_uri))
        markdown += f"\n[This page as a notebook]({name}){{ download }}\n"
    return markdown


def _notebook(page: str) -> str:
    return f"{page.removesuffix('.md')}.ipynb"


def _above(page: str, text: str) -> set[str]:
    """Return the paths in the repository, outside of docs/, of files that *page* links to."""
    paths = {_path(posixpath.dirname(page), match[1]) for match in ABOVE.finditer(text)}
    return {path for path in paths if not path.startswith("docs/")}


def _path(folder: str, link: str) -> str:
    return posixpath.normpath(posixpath.join("docs", folder, link))


def _place(path: str) -> str:
    """Return where the site shows the file at *path*; its front page stands for the README."""
    if path == "README.md":
        return "index.md"
    return f"files/{path.removesuffix('.py')}.md" if path.endswith(".py") else f"files/{path}"


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Return *output* with names for screen readers where the theme has none.

    Raises if a browser would load something from elsewhere; links are not loaded.
    """
    if found := LOADED.findall(output):
        raise PluginError(f"{page.file.src_uri} loads {', '.join(found)}")
    return _named(output)


def on_post_template(output_content: str, **_: Any) -> str:
    """Return a page that is made of a template only, such as 404.html, with the same names."""
    return _named(output_content)


def _named(html: str) -> str:
    html = html.replace('role="dialog"', 'role="dialog" aria-label="Search"')
    return re.sub("<th([^>]*)></th>", r"<td\1></td>", html)
