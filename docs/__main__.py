"""`python -m docs FOLDER`: the pages of the site in FOLDER/pages, and FOLDER/mkdocs.yml, which says in which order.
With `--build` mkdocs makes FOLDER/site of them, with `--page` also the page that programs are opened in."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

import yaml

from docs.order import CODES, ROOT, navigation, places
from docs.pages import codes_page, prepared

_CONFIG = {
    "site_name": "Shard",
    "docs_dir": "pages",
    "theme": {
        "name": "material",
        "font": False,  # theirs come from a server
        "palette": [
            {"media": "(prefers-color-scheme: light)", "scheme": "default"},
            {"media": "(prefers-color-scheme: dark)", "scheme": "slate"},
        ],
        "features": ["navigation.tabs", "content.code.copy", "search.highlight", "toc.follow"],
    },
    "plugins": ["search", "offline"],
    "markdown_extensions": [
        "tables", {"toc": {"permalink": True}}, "pymdownx.highlight", "pymdownx.superfences", "pymdownx.inlinehilite",
    ],
    "validation": {"nav": {"omitted_files": "warn"}, "links": {"anchors": "warn", "absolute_links": "warn"}},
}  # fmt: skip


def prepare(folder: Path) -> None:
    """Writes the pages, what they link to, and how mkdocs is to build them."""
    pages = folder / "pages"
    programs = pages / "page" / "programs"
    shutil.rmtree(pages, ignore_errors=True)
    programs.mkdir(parents=True)
    for file in places():
        page = prepared(file)
        _write(pages / page.place, page.text)
        for program in page.programs:
            _write(programs / f"{program.name}.json", program.as_json())
        for beside in page.beside:
            (pages / beside).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / beside, pages / beside)
    _write(pages / CODES, codes_page())
    shutil.copyfile(ROOT / "docs" / "page" / "index.html", pages / "page" / "index.html")
    _write(folder / "mkdocs.yml", yaml.safe_dump({**_CONFIG, "nav": navigation()}, sort_keys=False))


def build(folder: Path) -> int:
    """Has mkdocs build FOLDER/site; its exit code. A dead link or a page without a place is a fault."""
    return subprocess.run([sys.executable, "-m", "mkdocs", "build", "--strict"], cwd=folder).returncode


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m docs", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--build", action="store_true", help="build the site with mkdocs (pip install '.[docs]')")
    parser.add_argument("--page", action="store_true", help="build the page for programs (needs node and npm)")
    asked = parser.parse_args()
    prepare(asked.folder)
    if asked.page:
        from docs.page.build import build as build_page

        build_page(asked.folder / "pages" / "page")
    return build(asked.folder) if asked.build else 0


if __name__ == "__main__":
    sys.exit(main())
