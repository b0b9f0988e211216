"""The page, its packages and the compiler -> two scripts and a stylesheet, which need no server."""

from __future__ import annotations

import subprocess
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from docs.order import ROOT
from docs.page.packages import installed, program

HERE = Path(__file__).parent
# What runs programs, and other ways in: a page has none of it, and reads it slower if it is there.
_ELSEWHERE = ("api", "checkpoints", "importing", "interpret", "launch", "lsp", "runtime", "search", "torch", "weights")


def build(target: Path) -> None:
    """Writes compiler.js, page.js and page.css. NoPackages where node or the packages are missing."""
    modules = installed((HERE / "package.json").read_text("utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        sources = Path(folder) / "sources.zip"
        with zipfile.ZipFile(sources, "w") as packed:
            for path in _files():
                packed.write(path, path.relative_to(ROOT))
        command = [program("node"), str(HERE / "bundle.mjs"), str(modules), str(sources), str(target)]
        subprocess.run(command, check=True)


def _files() -> Iterator[Path]:
    """The package and what it reads, as they lie in the checkout."""
    for folder in ("shardlang", "stdlib"):
        for path in sorted((ROOT / folder).rglob("*")):
            parts = path.relative_to(ROOT).parts
            if path.is_file() and "__pycache__" not in parts and parts[1] not in _ELSEWHERE:
                yield path
