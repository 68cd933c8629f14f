"""What the site has beside docs/: pages made from the code and files of the repository that pages link to.

Pages of docs/ link to files of the repository as they are read there (`../lpld_labels/SPEC.md`). On the site
such a link leads to the page made of that file, or to a copy of it.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from cli_page import cli_page
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
PAGES = {
    "README.md": "index.md",
    "examples": "reference/examples.md",
    "lpld_labels/SPEC.md": "reference/format.md",
    "CHANGELOG.md": "reference/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
    "benchmarks/README.md": "project/benchmarks.md",
}
"""Path in the repository -> page of the site. Files among them become that page."""
COPIES = "repository"
SHORT_CODE = re.compile(r"<code>([^<]{1,18})</code>")
LINK = re.compile(r"(?<=\]\()(?P<target>[^)\s#]+)(?P<anchor>#[^)\s]*)?(?=\))")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made, and copies of files that are linked to."""
    for page, text in _made_pages().items():
        files.append(File.generated(config, page, content=text))
    for file in list(files.documentation_pages()):
        text = file.content_string
        for match in LINK.finditer(text):
            place = _outside(match["target"], file.src_uri)
            if place is not None and _page_of(place) is None:
                copy = f"{COPIES}/{place}"
                if files.get_file_from_path(copy) is None and (ROOT / place).is_file():
                    files.append(File.generated(config, copy, abs_src_path=str(ROOT / place)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links out of docs/ into links within the site."""
    here = page.file.src_uri

    def moved(match: re.Match[str]) -> str:
        place = _outside(match["target"], here)
        anchor = match["anchor"] or ""
        if place is None:
            return match[0]
        page_of_it = _page_of(place)
        if page_of_it is not None and place.endswith(".py"):
            anchor = f"#{Path(place).stem.replace('_', '-')}"
        target = page_of_it or f"{COPIES}/{place}"
        return posixpath.relpath(target, posixpath.dirname(here) or ".") + anchor

    return LINK.sub(moved, markdown)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Mark code that is short enough to stay on one line."""
    return SHORT_CODE.sub(r'<code class="short">\1</code>', html)


def _made_pages() -> dict[str, str]:
    """Return the Markdown of every page that is not a file of docs/."""
    pages = {page: (ROOT / place).read_text() for place, page in PAGES.items() if (ROOT / place).is_file()}
    return {**pages, "reference/cli.md": cli_page(), "reference/examples.md": _examples_page()}


def _examples_page() -> str:
    """Return a page with the source of every example."""
    parts = ["# Examples\n\nEach is a program of the repository's `examples/` and is run by its tests.\n"]
    for path in sorted((ROOT / "examples").glob("*.py")):
        if path.name != "__init__.py":
            code = path.read_text().rstrip()
            parts.append(f"## {path.stem} {{ #{path.stem.replace('_', '-')} }}\n\n```python\n{code}\n```\n")
    return "\n".join(parts)


def _page_of(place: str) -> str | None:
    """Return the page of the site that shows a file of the repository; None where it is copied."""
    if re.fullmatch(r"examples/\w+\.py", place):
        return "reference/examples.md"
    return place.removeprefix("docs/") if place.startswith("docs/") else PAGES.get(place)


def _outside(target: str, page: str) -> str | None:
    """Return the path in the repository that a link of a page means; None where it stays in docs/."""
    if re.match(r"[a-z]+:", target):
        return None
    origin = {made: place for place, made in PAGES.items()}.get(page, f"docs/{page}")
    place = posixpath.normpath(posixpath.join(posixpath.dirname(origin), target))
    if origin.startswith("docs/") and place.startswith("docs/"):
        return None
    return place
