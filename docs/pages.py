"""A page as it stands in the project -> the page of the site, and the programs in it.

mkdocs takes a fence with words behind its language as prose: here they go, and what they say of a program goes with
the program. What names another page, in whatever way, leads to it."""

from __future__ import annotations

import json
import os
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache

from docs.order import ROOT, TRY, places
from shardlang.diagnostics import explain_pages

# A fence, or lines of code that are indented.
_CODE = re.compile(
    r"(?ms)^```(?P<language>\S*)[ \t]*(?P<words>[^\n]*)\n(?P<fenced>.*?)^```[ \t]*\n"
    r"|(?<=\n\n)(?P<indented>(?:    [^\n]*\n|\n(?=    ))+)"
)
# A code span, a link, the code of a diagnostic; or a heading, which stays as it is.
_NAMING = re.compile(r"(?ms)(`+)(?P<span>.+?)\1|\[(?P<text>[^\]]*)\]\((?P<to>[^)\s]+)\)|\b(?P<code>SH\d{3})\b|^#[^\n]*")
# Which page a reader wants who is sent to a folder.
_FOLDERS = {"specs": "specs/models.md", "specs/tutorial": "specs/tutorial/1_first_program.md",
            "benchmarks": "benchmarks/README.md"}  # fmt: skip


@dataclass(frozen=True)
class Program:
    """A `shard` block of a page, with what its fence says. overrides: what `--set` gives. files: those that it may
    import, by name."""

    name: str
    text: str
    ranks: int | None = None
    strategy: str | None = None
    overrides: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)

    def as_script(self) -> str:
        """What the page that opens it reads: from a disk it may read scripts alone."""
        return f"shardProgram({json.dumps(asdict(self), indent=1)});\n"

    def link(self, text: str, up: str = "") -> str:
        return f"[{text}]({up}page/index.html?program={self.name})"


@dataclass
class Page:
    """A page of the site. beside: files that it links to and that are no pages."""

    file: str
    text: str = ""
    programs: list[Program] = field(default_factory=list)
    beside: set[str] = field(default_factory=set)

    @property
    def place(self) -> str:
        return places()[self.file]

    @property
    def up(self) -> str:
        """The way from the page to the root of the site."""
        return "../" * self.place.count("/")

    def link(self, text: str, file: str, anchor: str = "") -> str:
        return f"[{text}]({self.up}{places()[file]}{anchor and '#'}{anchor})"


def prepared(file: str) -> Page:
    page, at = Page(file), 0
    files: dict[str, str] = {}
    text = (ROOT / file).read_text("utf-8")
    for code in _CODE.finditer(text):
        page.text += _linked(text[at : code.start()], page) + _plain(code)
        at = code.end()
        said = [word.partition("=")[::2] for word in (code["words"] or "").split()]
        files.update({value: code["fenced"] for word, value in said if word == "file"})
        if _language(code) == "shard":
            program = _program(page, code["fenced"], said, files)
            page.programs.append(program)
            page.text += f"\n{program.link('Open in the browser', page.up)}{{ .open }}\n"
    page.text += _linked(text[at:], page)
    return page


def _plain(code: re.Match[str]) -> str:
    """A fence that says nothing but its language; a longer one where there are fences in it."""
    text = textwrap.dedent(code["indented"]) if code["indented"] else code["fenced"]
    fence = "`" * (4 if "```" in text else 3)
    return f"{fence}{_language(code)}\n{text}{fence}\n"


def _language(code: re.Match[str]) -> str:
    """That of a fence, or the one that its text shows."""
    return code["language"] or ("shard" if (code["fenced"] or "").startswith("use ") else "")


def _program(page: Page, text: str, said: Sequence[tuple[str, str]], files: Mapping[str, str]) -> Program:
    name = f"{page.place.removesuffix('.md').replace('/', '-')}-{len(page.programs) + 1}"
    words = dict(said)
    overrides = dict(value.partition("=")[::2] for word, value in said if word == "set")
    ranks = int(words["ranks"]) if "ranks" in words else None
    return Program(name, text, ranks, words.get("strategy"), overrides, dict(files))


def _linked(text: str, page: Page) -> str:
    """Prose in which all that names a page leads to it."""
    return _NAMING.sub(lambda found: _led(found, page), text)


def _led(found: re.Match[str], page: Page) -> str:
    """A name on a page, as a link where it names a page, or links to what is no page."""
    code = explain_pages.pages().get(found["code"] or found["span"] or "")
    if code is not None:
        file = code.relative_to(ROOT).as_posix()
        return found[0] if file == page.file else page.link(found[0], file)
    name, _, anchor = (found["to"] or found["span"] or "").partition("#")
    file = _file(name, page)
    if file in places() and file != page.file:
        return page.link(_title(file) if found["text"] in (None, name) else found["text"], file, anchor)
    if not found["to"] or "://" in name or not name:
        return found[0]
    if file is not None:
        page.beside.add(file)
    return found["text"] if file is None else f"[{found['text']}]({page.up}{file})"


def _file(name: str, page: Page) -> str | None:
    """The file of the project that a name on a page leads to; pages of specs/ are named from there."""
    name = name.rstrip("/")
    nearest = os.path.normpath(os.path.join(os.path.dirname(page.file), name))
    found = (_FOLDERS.get(each, each) for each in (nearest, name, f"specs/{name}"))
    return next((each for each in found if name and (ROOT / each).is_file()), None)


@cache
def _title(file: str) -> str:
    return (ROOT / file).read_text("utf-8").partition("\n")[0].removeprefix("# ")


def codes_page() -> str:
    """The list of all codes."""
    lines = [f"- [{code}]({code}.md): {explain_pages.title(code)}" for code in explain_pages.pages()]
    return "# Codes\n\nEach mistake has a code, which `shardc explain` explains as well.\n\n" + "\n".join(lines) + "\n"


def examples() -> list[Program]:
    files = sorted((ROOT / "examples").glob("*.shard"))
    return [Program(f"examples-{file.stem}", file.read_text("utf-8")) for file in files]


def try_page() -> str:
    """The page on the editor in the browser, with the programs of the examples."""
    return (ROOT / "docs" / TRY).read_text("utf-8") + "\n".join(map(_listed, examples())) + "\n"


def _listed(program: Program) -> str:
    """What the comment at the top says of it, up to its first sentence's end."""
    about = re.match(r"(?:# [^\n]*\n)+", program.text)
    said = " ".join(line.removeprefix("# ") for line in about[0].splitlines()) if about else ""
    return f"- {program.link(program.name.removeprefix('examples-'))}: {said.partition('. ')[0].rstrip('.:')}"
