"""`python -m docs FOLDER`: the pages of the site in FOLDER/pages, and FOLDER/mkdocs.yml, which says in which order.
With `--build` mkdocs makes FOLDER/site of them, with `--page` also the editor that programs are opened in."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import yaml

from docs.order import CODES, ROOT, SECTIONS, TRY, navigation, places
from docs.page.build import build as build_page
from docs.page.packages import NoPackages
from docs.pages import Program, codes_page, examples, prepared, try_page


def _palette(mode: str, scheme: str, other: str) -> dict[str, object]:
    """The colours of a mode, which the system asks for or a click on the way to the other."""
    toggle = {"icon": f"material/weather-{'sunny' if mode == 'light' else 'night'}", "name": f"Use {other} colours"}
    return {"media": f"(prefers-color-scheme: {mode})", "scheme": scheme, "toggle": toggle}


_CONFIG = {
    "site_name": "Shard",
    "docs_dir": "pages",
    "theme": {
        "name": "material",
        "font": False,  # theirs come from a server
        "palette": [
            _palette("light", "default", "dark"),
            _palette("dark", "slate", "light"),
        ],
        "features": ["navigation.tabs", "content.code.copy", "search.highlight", "toc.follow"],
    },
    "extra_css": ["site.css"],
    "extra": {"polyfills": ["iframe-worker.js"]},
    "plugins": ["search", "offline"],
    "markdown_extensions": [
        "attr_list", "tables", {"toc": {"permalink": True}}, "pymdownx.highlight", "pymdownx.superfences",
        "pymdownx.inlinehilite",
    ],
    "validation": {"nav": {"omitted_files": "warn"}, "links": {"anchors": "warn", "absolute_links": "warn"}},
}  # fmt: skip

# The head of a page that lists things, or of a code's: in what the search finds it stands behind those that explain.
_BEHIND = "---\nsearch:\n  boost: 0.3\n---\n\n"


def _explains(file: str) -> bool:
    return any(file in files for heading, files in SECTIONS.items() if heading != "Reference")


def prepare(folder: Path) -> None:
    """Writes the pages, what they link to, and how mkdocs is to build them."""
    pages = folder / "pages"
    programs = pages / "page" / "programs"
    shutil.rmtree(pages, ignore_errors=True)
    programs.mkdir(parents=True)
    for file in places():
        page = prepared(file)
        _write(pages / page.place, ("" if _explains(file) else _BEHIND) + page.text)
        _programs(programs, page.programs)
        for beside in page.beside:
            (pages / beside).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / beside, pages / beside)
    _programs(programs, examples())
    _write(pages / CODES, codes_page())
    _write(pages / TRY, try_page())
    shutil.copyfile(ROOT / "docs" / "page" / "index.html", pages / "page" / "index.html")
    for name in ("site.css", "iframe-worker.js"):
        shutil.copyfile(ROOT / "docs" / name, pages / name)
    _write(folder / "mkdocs.yml", yaml.safe_dump({**_CONFIG, "nav": navigation()}, sort_keys=False))


def build(folder: Path) -> int:
    """Has mkdocs build FOLDER/site; its exit code. A dead link or a page without a place is a fault."""
    return subprocess.run([sys.executable, "-m", "mkdocs", "build", "--strict"], cwd=folder).returncode


def _programs(folder: Path, programs: Iterable[Program]) -> None:
    for program in programs:
        _write(folder / f"{program.name}.js", program.as_script())


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m docs", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--build", action="store_true", help="build the site with mkdocs (pip install '.[docs]')")
    parser.add_argument("--page", action="store_true", help="build the editor for programs (needs node and npm)")
    asked = parser.parse_args()
    prepare(asked.folder)
    editor = _editor(asked.folder / "pages" / "page") if asked.page else True
    return (build(asked.folder) if asked.build else 0) or int(not editor)


def _editor(folder: Path) -> bool:
    """Whether it could be built. The site is whole without it, and says so where it is opened."""
    try:
        build_page(folder)
    except NoPackages as reason:
        print(f"The editor in the browser is not built: {reason}. It needs node 18 and npm.", file=sys.stderr)
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
