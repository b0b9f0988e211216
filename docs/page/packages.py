"""Packages of npm, and what else is not in Python -> folders outside of the checkout, each made once.

They are in `SHARDLANG_CACHE`, or in ~/.cache/shardlang."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

NPM = ("install", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")


class NoPackages(Exception):
    """The packages cannot be had; the message says why."""


def program(*names: str) -> str:
    """The path of the first of these programs that this machine has."""
    found = next((path for name in names if (path := shutil.which(name))), None)
    if found is None:
        raise NoPackages(f"there is no {' and no '.join(names)}")
    return found


def installed(package: str) -> Path:
    """The folder `node_modules` with packages of npm. package: the text of a package.json."""
    program("node")
    npm = program("npm")

    def install(folder: Path) -> None:
        (folder / "package.json").write_text(package, "utf-8")
        command([npm, *NPM], folder)

    return made_once("npm-" + hashlib.sha256(package.encode()).hexdigest()[:16], install) / "node_modules"


def made_once(name: str, make: Callable[[Path], None]) -> Path:
    """A folder of the cache, filled by the first who asks for it."""
    home = Path(os.environ.get("SHARDLANG_CACHE") or Path.home() / ".cache" / "shardlang")
    folder = home / name
    if folder.is_dir():
        return folder
    home.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(dir=home))
    try:
        make(made)
        # Another process may have been first: then the folder is there, and stays.
        with contextlib.suppress(OSError):
            made.rename(folder)
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return folder


def command(words: Sequence[str], folder: Path, env: Mapping[str, str] | None = None) -> None:
    """Runs a command in a folder; NoPackages with the end of what it says where it fails."""
    done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True)
    if done.returncode != 0:
        raise NoPackages(f"{' '.join(words)}: {(done.stderr or done.stdout).strip()[-400:]}")
