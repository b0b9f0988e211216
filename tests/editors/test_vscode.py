"""`npm run package` in editors/vscode makes a `.vsix` that has all that VS Code reads of it."""

from __future__ import annotations

import json
import re
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest

from shardlang import __version__
from tests.editors.cached import program, required
from tests.editors.conftest import ROOT
from tests.syntax.bless import COLOURS

SOURCES = ROOT / "editors" / "vscode"
PACKAGE: dict[str, Any] = json.loads((SOURCES / "package.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def packed(vsix: Path) -> zipfile.ZipFile:
    return zipfile.ZipFile(vsix)


def test_the_extension_has_what_it_names(packed: zipfile.ZipFile) -> None:
    inside = {name.removeprefix("extension/") for name in packed.namelist()}
    told = json.loads(packed.read("extension/package.json"))
    paths = [each["path"] for each in told["contributes"]["grammars"]]
    paths += [each["configuration"] for each in told["contributes"]["languages"]] + [told["main"]]
    assert {path.removeprefix("./") for path in paths} <= inside
    assert {"readme.md", "license.txt"} <= {name.lower() for name in inside}
    assert {name for name in inside if not name.startswith("[")} - {path.removeprefix("./") for path in paths} == {
        "package.json", "readme.md", "LICENSE.txt", "extension.vsixmanifest",
    }  # fmt: skip


def test_its_grammar_is_that_of_the_repository(packed: zipfile.ZipFile) -> None:
    assert packed.read("extension/dist/shard.tmLanguage.json").decode() == COLOURS.read_text("utf-8")


def test_the_client_needs_nothing_but_vs_code_and_node(packed: zipfile.ZipFile, tmp_path: Path) -> None:
    (tmp_path / "client.js").write_bytes(packed.read("extension/dist/client.js"))
    script = """
      const {Module, builtinModules} = require("module"), load = Module._load, asked = new Set();
      const anything = () => new Proxy(class {}, {get: (of, name) => name in of ? of[name] : anything()});
      Module._load = (name, ...rest) => (asked.add(name), name === "vscode" ? anything() : load(name, ...rest));
      const client = require(process.argv[1]);
      const others = [...asked].filter(name => !builtinModules.includes(name.replace("node:", "")));
      const network = [...asked].filter(name => /^(node:)?(dgram|dns|http2?|https|tls)$/.test(name));
      const found = [others.filter(name => !name.endsWith("client.js")), network, Object.keys(client).sort()];
      console.log(JSON.stringify(found));
    """
    command = [program("node", missing=required), "-e", script, str(tmp_path / "client.js")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert json.loads(done.stdout or "null") == [["vscode"], [], ["activate", "deactivate"]], done.stderr


def test_versions_and_names_agree() -> None:
    """Commands and settings that the package declares are those that the client has."""
    client = (SOURCES / "client.js").read_text("utf-8")
    contributes = PACKAGE["contributes"]
    assert PACKAGE["version"] == __version__
    declared = {command["command"] for command in contributes["commands"]}
    assert declared == set(re.findall(r'^    "(shard\.\w+)":', client, re.MULTILINE))
    settings = {f"shard.{name}" for name in re.findall(r'settings\(\)\.get\("([\w.]+)"\)', client)}
    assert settings == set(contributes["configuration"]["properties"])
