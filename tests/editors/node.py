"""Packages of npm for tests of editors, installed once into a folder outside of the checkout.

The folder is `SHARDLANG_CACHE`, or ~/.cache/shardlang-tests. Where there is no node, no npm or no network, the test is
skipped with the reason; `SHARDLANG_EDITORS=require` makes that a failure.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

import pytest


def missing(reason: str) -> NoReturn:
    """Skips the test, or fails it where all editors are required."""
    if os.environ.get("SHARDLANG_EDITORS") == "require":
        pytest.fail(reason)
    pytest.skip(reason)


def program(*names: str) -> str:
    """The path of the first of these programs that this machine has."""
    found = next((path for name in names if (path := shutil.which(name))), None)
    return found or missing(f"there is no {' and no '.join(names)}")


def modules(versions: Mapping[str, str]) -> Path:
    """The folder `node_modules` with these packages in these versions."""
    program("node")
    text = json.dumps({"private": True, "dependencies": dict(versions)})
    folder = _cache() / hashlib.sha256(text.encode()).hexdigest()[:16]
    if not folder.is_dir():
        _install(text, folder)
    return folder / "node_modules"


def _install(package: str, folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(dir=folder.parent))
    (made / "package.json").write_text(package, "utf-8")
    install = [program("npm"), "install", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    done = subprocess.run(install, cwd=made, capture_output=True, text=True)
    if done.returncode == 0:
        # Another process may have been first: then the folder is there, and stays.
        with contextlib.suppress(OSError):
            made.rename(folder)
    shutil.rmtree(made, ignore_errors=True)
    if done.returncode != 0:
        missing(f"npm cannot install packages: {done.stderr.strip()[-400:]}")


def _cache() -> Path:
    return Path(os.environ.get("SHARDLANG_CACHE") or Path.home() / ".cache" / "shardlang-tests") / "npm"
