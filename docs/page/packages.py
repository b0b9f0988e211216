"""Packages of npm -> a folder `node_modules` outside of the checkout, installed once.

It is in `SHARDLANG_CACHE`, or in ~/.cache/shardlang-docs."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path


class NoPackages(Exception):
    """The packages cannot be had; the message says why."""


def program(name: str) -> str:
    """The path of a program of this machine."""
    found = shutil.which(name)
    if found is None:
        raise NoPackages(f"there is no {name}")
    return found


def installed(package: str) -> Path:
    """package: the text of a package.json."""
    program("node")
    home = Path(os.environ.get("SHARDLANG_CACHE") or Path.home() / ".cache" / "shardlang-docs") / "npm"
    folder = home / hashlib.sha256(package.encode()).hexdigest()[:16]
    if not folder.is_dir():
        home.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=home) as made:
            _install(package, Path(made) / "made", folder)
    return folder / "node_modules"


def _install(package: str, made: Path, folder: Path) -> None:
    made.mkdir()
    (made / "package.json").write_text(package, "utf-8")
    command = [program("npm"), "install", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    done = subprocess.run(command, cwd=made, capture_output=True, text=True)
    if done.returncode != 0:
        raise NoPackages(f"npm cannot install packages: {done.stderr.strip()[-400:]}")
    # Another process may have been first: then the folder is there, and stays.
    with contextlib.suppress(OSError):
        made.rename(folder)
