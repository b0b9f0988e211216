"""The extension in VS Code itself: code-server, and Chromium, which one session of `code.js` leads. It takes a minute,
so `python -m tests.editors` runs it, and `python -m tests` does not."""

from __future__ import annotations

import json
import os
import re
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
    "workbench.startupEditor": "none", "extensions.autoCheckUpdates": False, "editor.minimap.enabled": False,
}  # fmt: skip
# VS Code's own theme has a colour for each of these.
KINDS = {
    "words": ["model", "layer", "forward", "strategy", "split", "over", "use"],
    "layers": ["src_embed", "encoder", "head"],
    "models": ["Translator", "TokenEmbedding", "Linear"],
    "axes": ["dp", "mp", "pp"],
    "dims": ["batch", "src", "tgt"],
    "numbers": ["512", "0.1", "32000"],
    "comments": ["Encoder-decoder translation with data, model and"],
}


@contextmanager
def served(folder: Path, extension: Path) -> Iterator[str]:
    """The address of a code-server that has the extension, and nothing else of anyone's."""
    node, script = code_server()
    known = ["--extensions-dir", str(folder / "extensions"), "--user-data-dir", str(folder / "user")]
    env = {**os.environ, "HOME": str(folder), "EXTENSIONS_GALLERY": "{}"}
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
        colours.setdefault(text.removeprefix("# "), set()).add(colour)
    kinds = {kind: {each for word in words for each in colours[word]} for kind, words in KINDS.items()}
    assert all(len(found) == 1 for found in kinds.values()), kinds
    assert len(set.union(*kinds.values())) == len(KINDS)


def test_hints_stand_behind_lines(told: dict[str, Any]) -> None:
    """The text of a line, and then what the server says of it."""
    written, shown = TEXT.split("\n"), told["hints"]
    assert len(shown) > 30 and all(line.startswith(text) for text, line in zip(written, shown, strict=False))
    hints = {text.strip(): line.removeprefix(text) for text, line in zip(written, shown, strict=False) if text != line}
    assert hints["memory = src_embed(source) |> encoder"].startswith("batch@dp, src@mp")
    assert " over mp" in hints["memory = src_embed(source) |> encoder"]
    assert hints["return head(states)"] == "batch@dp, vocab@mp"


def test_a_lens_stands_above_each_strategy(told: dict[str, Any]) -> None:
    ranks = ["8 ranks (dp 8)", "8 ranks (mp 8)", "8 ranks (pp 2, dp 2, mp 2)"]
    assert [lens.partition(":")[0] for lens in told["lenses"]] == ranks
    assert [lens.endswith("(choose)") for lens in told["lenses"]] == [True, True, False]


def test_a_mistake_has_a_fix_and_moves_nothing(told: dict[str, Any]) -> None:
    assert [line for line in told["mistaken"] if "xencoder" in line] == [
        line.replace("|> encoder", "|> xencoder") for line in told["hints"] if "|> encoder" in line
    ]
    assert told["mistaken_lenses"] == told["lenses"]
    assert any("write `encoder`" in fix for fix in told["fixes"])
    assert told["fixed"] == told["hints"]
    assert len(told["tops"]) == 1 and len(told["tops"][0][0]) > 30 and len(told["tops"][0][1]) == 3


def test_what_one_points_at_is_told(told: dict[str, Any]) -> None:
    assert all(text in told["hover"] for text in ("f32[batch@dp, src@mp, d]", "A rank holds", "all-gather over mp"))


def test_the_plan_follows_the_cursor(told: dict[str, Any]) -> None:
    assert "8 ranks" in told["plan"] and told["visible"] and told["marked"] >= 1
    assert told["cursor"] == str(next(n for n, line in enumerate(TEXT.split("\n"), 1) if "memory = src" in line))


def test_the_plan_is_dark_where_the_editor_is(told: dict[str, Any]) -> None:
    back, text = (sum(map(int, re.findall(r"\d+", told["dark"][name])[:3])) for name in ("back", "text"))
    assert back < 200 < 500 < text


def test_another_strategy_and_other_ranks_are_chosen(told: dict[str, Any]) -> None:
    names = ("data_parallel", "model_parallel", "three_d")
    assert [name for name in names for shown in told["strategies"] if name in shown] == [*names]
    ranks = ["4 ranks (dp 4)", "4 ranks (mp 4)", "4 ranks (pp 2, mp 2)"]
    assert [lens.partition(":")[0] for lens in told["chosen"]["lenses"]] == ranks
    assert [lens.endswith("(choose)") for lens in told["chosen"]["lenses"]] == [True, False, True]
    assert any(line.endswith("return head(states)vocab@mp") for line in told["chosen"]["lines"])
    assert [lens.endswith("(choose)") for lens in told["clicked"]] == [False, True, True]


def test_a_missing_shardc_is_told(told: dict[str, Any]) -> None:
    assert told["missing"] == [
        "There is no `/nowhere/shardc`. Type `pip install shardlang`, or set `shard.path` to where shardc is."
    ]


def test_the_page_asks_nobody_else(told: dict[str, Any]) -> None:
    assert told["elsewhere"] == []
