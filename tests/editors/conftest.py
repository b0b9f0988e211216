"""What tests of editors share: the packed extension, `shardc` of this checkout, and where pictures go."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.editors.cached import modules, program, required

ROOT = Path(__file__).resolve().parents[2]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--pictures", type=Path, help="the folder for pictures of VS Code")


@pytest.fixture(scope="session")
def vsix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packed extension, made in a copy of the checkout's folders."""
    source = ROOT / "editors" / "vscode"
    installed = modules(json.loads((source / "package.json").read_text("utf-8"))["devDependencies"])
    copy = tmp_path_factory.mktemp("checkout")
    shutil.copytree(ROOT / "grammars", copy / "grammars")
    shutil.copy(ROOT / "LICENSE", copy)
    there = copy / "editors" / "vscode"
    shutil.copytree(source, there, ignore=shutil.ignore_patterns("node_modules", "dist", "LICENSE"))
    (there / "node_modules").symlink_to(installed)
    npm = program("npm", missing=required)
    done = subprocess.run([npm, "run", "package"], cwd=there, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (made,) = (there / "dist").glob("*.vsix")
    return made


@pytest.fixture(scope="session")
def shardc(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `shardc` of this checkout."""
    path = tmp_path_factory.mktemp("bin") / "shardc"
    start = f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(ROOT)!r})\n"
    path.write_text(start + "from shardlang.cli.start import main\nmain()\n", "utf-8")
    path.chmod(0o755)
    return path
