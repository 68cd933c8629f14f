"""The project's documents taken apart: code blocks, commands, links and headings."""

import re
import shlex
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
DOCUMENTS = [
    *sorted(PROJECT.glob("*.md")),
    *sorted((PROJECT / "docs").rglob("*.md")),
    PROJECT / "lpld_labels" / "SPEC.md",
    PROJECT / "benchmarks" / "README.md",
]
NAMES = [path.relative_to(PROJECT).as_posix() for path in DOCUMENTS]

FENCE = re.compile(
    r"(?P<mark>^[ ]*<!-- not run: [^\n]+ -->\n)?"
    r"^(?P<indent>[ ]*)```(?P<language>\w*)[^\n]*\n(?P<code>.*?)^[ ]*```$",
    re.MULTILINE | re.DOTALL,
)
FENCED = r"^[ ]*```.*?^[ ]*```$"
NOT_PROSE = re.compile(rf"{FENCED}|`[^`\n]*`", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Block:
    """A fenced code block. `runs` is false where a comment before it says why it is not run."""

    language: str
    code: str
    line: int
    runs: bool


def blocks(text: str) -> list[Block]:
    """Return the code blocks of a document."""
    return [
        Block(
            language=match["language"],
            code=re.sub(rf"^{match['indent']}", "", match["code"], flags=re.MULTILINE),
            line=text.count("\n", 0, match.start("code")),
            runs=match["mark"] is None,
        )
        for match in FENCE.finditer(text)
    ]


def commands(code: str) -> list[list[str]]:
    """Return the words of every command of a shell block, without comments, its own variables filled in."""
    found = []
    variables: dict[str, str] = {}
    for line in code.replace("\\\n", " ").splitlines():
        filled = re.sub(r"\$([A-Z_]+)", lambda name: variables.get(name[1], name[0]), line)
        words = shlex.split(filled, comments=True)
        if len(words) == 1 and (given := re.fullmatch(r"([A-Z_]+)=(.*)", words[0])):
            variables[given[1]] = given[2]
        if words:
            found.append(words)
    return found


def links(text: str) -> list[str]:
    """Return the targets of a document's links and pictures that are no addresses of the web."""
    prose = NOT_PROSE.sub("", text)
    found = re.findall(r"\]\(([^)\s]+)\)", prose) + re.findall(r"(?:href|src)=\"([^\"]+)\"", prose)
    return [target for target in found if not re.match(r"(?:https?|mailto):", target)]


def anchors(text: str) -> set[str]:
    """Return what a link's `#...` may name: headings as GitHub and the site write them."""
    found: Counter[str] = Counter()
    names = set()
    prose = re.sub(FENCED, "", text, flags=re.MULTILINE | re.DOTALL)
    for heading in re.findall(r"^#{1,6} (.+)$", prose, flags=re.MULTILINE):
        plain = re.sub(r"[`*]|\]\([^)]*\)|\[", "", heading).strip().lower()
        slug = re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", plain))
        names.add(f"{slug}-{found[slug]}" if found[slug] else slug)
        found[slug] += 1
    return names
