"""The extension in VS Code itself: code-server, and Chromium, which one session of `code.js` leads. It takes a minute,
so `python -m tests.editors` runs it, and `python -m tests` does not."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.editors.cached import code_server, modules, program
from tests.editors.conftest import ROOT

SCRIPT = Path(__file__).with_name("code.js")
PROGRAM = ROOT / "examples" / "transformer.shard"
TEXT = PROGRAM.read_text("utf-8")
# What code.js does, in words and lines of the program.
LED = {
    "file": "transformer.shard",
    "mistake": {"line": "memory = src_embed", "word": "memory", "typed": "x"},
    "hover": ["memory = src_embed", "memory"],
    "follow": [
        ["layer head", "head"],
        ["return head(states)", "states"],
        ["memory = src_embed", "memory"],
        ["return head(states)", "return", "# here\n", "here"],
    ],
    "strategy": "model_parallel",
    "lens": "mp 8",
    "ranks": 4,
}
# What would take room beside the text.
PERSON: dict[str, object] = {
    "chat.disableAIFeatures": True, "workbench.secondarySideBar.defaultVisibility": "hidden",
    "workbench.startupEditor": "none", "editor.minimap.enabled": False,
}  # fmt: skip
# VS Code's own theme has a colour for each of these.
KINDS = {
    "words": ["model", "layer", "forward", "return", "strategy", "split", "over", "use", "dim"],
    "models": ["Translator", "TokenEmbedding", "Linear"],
    "numbers": ["512", "0.1", "32000"],
    "comments": ["# Encoder-decoder translation with data, model and pipeline parallelism."],
}


@contextmanager
def served(folder: Path, extension: Path) -> Iterator[str]:
    """The address of a code-server that has the extension, and nothing else of anyone's."""
    node, script = code_server()
    known = ["--extensions-dir", str(folder / "extensions"), "--user-data-dir", str(folder / "user")]
    env = {**os.environ, "HOME": str(folder), "XDG_CONFIG_HOME": str(folder / "config")}
    install = [str(node), str(script), *known, "--install-extension", str(extension)]
    done = subprocess.run(install, env=env, capture_output=True, text=True)
    assert "was successfully installed" in done.stdout, done.stdout + done.stderr
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    quiet = ["--auth", "none", "--disable-telemetry", "--disable-update-check", "--disable-workspace-trust"]
    with open(folder / "log", "wb") as log:
        server = subprocess.Popen([str(node), str(script), *known, *quiet, "--bind-addr", address], env=env, stdout=log,
                                  stderr=log, start_new_session=True)  # fmt: skip
        try:
            _answers(address, server)
            yield f"http://{address}"
        finally:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()


def _answers(address: str, server: subprocess.Popen[bytes]) -> None:
    host, port = address.split(":")
    while server.poll() is None:
        try:
            return socket.create_connection((host, int(port))).close()
        except ConnectionRefusedError:
            time.sleep(0.1)
    raise AssertionError("code-server ended")


@pytest.fixture(scope="module")
def told(
    vsix: Path, shardc: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> dict[str, Any]:
    """What VS Code showed, in the order of code.js."""
    node, _ = code_server()
    chromium, home = program("chromium", "chromium-browser", "google-chrome"), tmp_path_factory.mktemp("code")
    pictures = (request.config.getoption("--pictures") or home / "pictures").resolve()
    pictures.mkdir(parents=True, exist_ok=True)
    _settings(home / "user" / "User", PERSON)
    folders = {name: str(home / name) for name in ("open", "broken")}
    _settings(home / "open" / ".vscode", {"shard.path": str(shardc), "shard.strategy": "three_d"})
    _settings(home / "broken" / ".vscode", {"shard.path": "/nowhere/shardc"})
    for folder in folders.values():
        shutil.copy(PROGRAM, folder)
    with served(home, vsix) as address:
        asked = {**LED, "address": address, "folders": folders, "pictures": str(pictures), "chromium": chromium}
        only = os.environ.get("SHARDLANG_CODE_STEPS")
        asked |= {"only": only.split(",")} if only else {}
        env = {**os.environ, "NODE_PATH": str(modules({"puppeteer-core": "25.16.0"}))}
        done = subprocess.run([str(node), str(SCRIPT), json.dumps(asked)], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _settings(folder: Path, settings: dict[str, object]) -> None:
    folder.mkdir(parents=True)
    (folder / "settings.json").write_text(json.dumps(settings), "utf-8")


def test_all_steps_went_through(told: dict[str, Any]) -> None:
    assert "failed" not in told, told["failed"]


def test_each_kind_has_its_colour(told: dict[str, Any]) -> None:
    colours: dict[str, set[str]] = {}
    for text, colour in told["colours"]:
        colours.setdefault(text, set()).add(colour)
    kinds = {kind: {each for word in words for each in colours[word]} for kind, words in KINDS.items()}
    print(kinds)
    assert all(len(found) == 1 for found in kinds.values()), kinds
    assert len(set.union(*kinds.values())) == len(KINDS)
