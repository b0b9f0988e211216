"""A program with operators of its user's, by the example of specs/extensions.md: checked without its Python, refused
without a lock, and equal under every strategy."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from shardlang import driver
from shardlang.cli.main import run as shardc
from shardlang.diagnostics.diagnostic import Sink
from tests import mdtest, warm
from tests.cli.process import SHARDC
from tests.documents.bless import SPECS
from tests.emit import sources

PAGE = (SPECS / "extensions.md").read_text("utf-8")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The files of the page."""
    for block in [*mdtest.blocks(PAGE), *mdtest.texts(PAGE)]:
        if name := block.option("file"):
            (tmp_path / name).write_text(block.text)
    return tmp_path


@pytest.fixture
def verified(folder: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert shardc(["verify", str(folder / "my_ops.shard")]) == 0
    capsys.readouterr()
    return folder


def said(*words: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = shardc([str(word) for word in words])
    found = capsys.readouterr()
    return code, found.out + found.err


def test_checking_planning_and_formatting_never_run_the_python(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "my_ops.py").write_text("raise SystemExit('this was run')\n")
    net = folder / "net.shard"
    for words in (["check", net], ["check", net, "--ranks", "4"], ["plan", net, "--ranks", "4"], ["fmt", net],
                  ["fmt", "--check", folder / "my_ops.shard"]):  # fmt: skip
        code, text = said(*map(str, words), capsys=capsys)
        assert code == 0 and "this was run" not in text, (words, text)
    code, text = said("plan", net, "--ranks", "4", capsys=capsys)
    assert "warning[SH611]: operator `causal_conv` is unverified" in text and "sent in a step" in text


def test_the_page_shows_what_verify_says(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = said("verify", folder / "my_ops.shard", capsys=capsys)
    assert code == 0
    assert "causal_conv: 47 splits at 3 sets of sizes agree (" in text
    assert "causal_conv: 47 splits at 3 sets of sizes agree (" in PAGE


def test_nothing_runs_an_operator_that_is_not_verified(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    net, out = folder / "net.shard", folder / "out"
    (folder / "w.safetensors").touch()
    for words in (["run", net, "--ranks", "4"], ["compile", net, "--ranks", "4", "-o", out],
                  ["verify", net, "--ranks", "4"], ["run", net, "--ranks", "4", "--simulate"],
                  ["predict", net, "--ranks", "4", "--out", folder / "x.npz", "--value", "h",
                   "--weights", folder / "w.safetensors"]):  # fmt: skip
        code, text = said(*map(str, words), capsys=capsys)
        assert code == 1 and "error[SH611]" in text, (words, text)
    assert not out.exists()


@pytest.mark.parametrize("change", ["python", "declaration", "versions", "broken"])
def test_a_lock_holds_for_what_was_verified_alone(
    verified: Path, change: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def warnings() -> int:
        program = sources.checked((verified / "net.shard").read_text(), name=str(verified / "net.shard"))
        sink = Sink()
        driver.check_strategies(program, None, 4, sink)
        return [d.code for d in sink.found].count("SH611")

    assert warnings() == 0
    lock, ops, own = verified / "my_ops.lock", verified / "my_ops.shard", verified / "my_ops.py"
    ops.write_text(ops.read_text().replace("  linear x\n", "  linear   x # as before\n"))
    assert warnings() == 0, "layout and comments are no part of a declaration"
    match change:
        case "python":
            own.write_text(own.read_text() + "\n# changed\n")
        case "declaration":
            ops.write_text(ops.read_text().replace("whole time, taps, after", "whole taps, after"))
        case "versions":
            lock.write_text(lock.read_text().replace('"torch": "', '"torch": "0'))
        case "broken":
            lock.write_text(lock.read_text()[:-20])
    assert warnings() == 1


def test_a_verified_operator_computes_under_a_strategy_what_it_computes_on_one_device(verified: Path) -> None:
    done = warm.run([*SHARDC, "verify", "net.shard", "--ranks", "4", "--json"], cwd=verified)
    assert done.returncode == 0, done.stdout + done.stderr
    (check,) = json.loads(done.stdout)["checks"]
    assert check["ok"] and check["emitted"] is not None


def test_a_function_gets_operands_as_it_was_tried_on(verified: Path) -> None:
    """A value that is turned lies in memory in another order, which `view` does not take."""
    ops, net = verified / "my_ops.py", verified / "net.shard"
    ops.write_text(
        ops.read_text().replace(
            "    taps =", "    x, w = x.view(-1).view(x.shape), w.view(-1).view(w.shape)\n    taps ="
        )
    )
    text = net.read_text().replace("param w: [channels, taps]", "param w: [taps, channels]")
    net.write_text(text.replace("causal_conv(x, w,", "causal_conv(x, rearrange(w -> [channels, taps]),"))
    for words in (["my_ops.shard"], ["net.shard", "--ranks", "4"]):
        done = warm.run([*SHARDC, "verify", *words], cwd=verified)
        assert done.returncode == 0, done.stdout + done.stderr


def test_a_function_that_fails_in_a_program_is_told_with_its_line(verified: Path) -> None:
    """It was tried at other sizes."""
    ops = verified / "my_ops.py"
    ops.write_text(ops.read_text() + "\n\ndef fails(x):\n    raise ValueError('an odd one')\n")
    here = "    if x.shape[1:] + w.shape[1:] in ((6, 12, 3), (3, 12, 3)):\n        fails(x)\n"
    ops.write_text(ops.read_text().replace("    taps =", f"{here}    taps ="))
    line = ops.read_text().splitlines().index("    raise ValueError('an odd one')") + 1
    done = warm.run([*SHARDC, "verify", "my_ops.shard"], cwd=verified)
    assert done.returncode == 0, done.stdout + done.stderr
    for words in (["verify", "net.shard", "--ranks", "4"], ["run", "net.shard", "--ranks", "4", "--simulate"]):
        done = warm.run([*SHARDC, *words], cwd=verified)
        assert done.returncode == 3 and "SH900" not in done.stderr, done.stderr
        assert "error[SH618]: `causal_conv`" in done.stderr and "ValueError: an odd one" in done.stderr
        assert f"my_ops.py:{line}" in done.stderr


def test_empty_parts_are_not_asked(verified: Path) -> None:
    """Eight examples over five ranks: one has none."""
    net = verified / "net.shard"
    net.write_text(net.read_text().replace("mesh dp = 2, mp = 2", "mesh dp = 5").replace(
        "split batch over dp\n  split channels over mp", "split channels over dp uneven"
    ).replace("channels = 6", "channels = 3"))  # fmt: skip
    done = warm.run([*SHARDC, "verify", "net.shard", "--ranks", "5", "--json"], cwd=verified)
    assert done.returncode == 0, done.stdout + done.stderr
    (check,) = json.loads(done.stdout)["checks"]
    assert check["ok"] and check["emitted"] is not None


def test_a_run_lists_the_files_that_it_loads(verified: Path) -> None:
    done = warm.run([*SHARDC, "run", "net.shard", "--ranks", "4"], cwd=verified)
    assert done.returncode == 0, done.stdout + done.stderr
    (hash,) = {o["source"] for o in json.loads((verified / "my_ops.lock").read_text())["operators"].values()}
    assert f"runs my_ops.py, sha256 {hash}" in done.stdout


def test_a_compiled_program_runs_the_text_that_was_compiled_or_nothing(verified: Path) -> None:
    net = verified / "net.shard"
    net.write_text(net.read_text().partition("strategy both")[0])
    done = warm.run([*SHARDC, "compile", "net.shard", "--ranks", "1", "-o", "out"], cwd=verified)
    assert done.returncode == 0, done.stdout + done.stderr
    (verified / "my_ops.py").write_text((verified / "my_ops.py").read_text() + "\n# later\n")
    done = warm.run([*SHARDC, "run", "net.shard", "--ranks", "1"], cwd=verified)
    assert done.returncode == 1 and "SH611" in done.stderr
    done = warm.run([sys.executable, "out/main.py", "--base", "."], cwd=verified)
    assert done.returncode == 3, done.stdout + done.stderr
    assert "error[SH619]: the file has changed since the program was compiled\n  --> my_ops.py" in done.stderr


def test_a_program_from_a_pipe_loads_no_file(
    verified: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(verified)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO((verified / "net.shard").read_bytes())))
    code, text = said("run", "-", "--ranks", "4", capsys=capsys)
    assert code == 1 and "a program from a pipe loads no file" in text


def test_a_link_that_leads_out_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inner = folder / "inner"
    inner.mkdir()
    (inner / "my_ops.shard").write_text((folder / "my_ops.shard").read_text())
    (inner / "my_ops.py").symlink_to(folder / "my_ops.py")
    code, text = said("check", inner / "my_ops.shard", capsys=capsys)
    assert code == 1 and "SH615" in text and "is a link to a file elsewhere" in text


def test_a_program_in_another_folder_finds_the_files(verified: Path) -> None:
    (verified / "programs").mkdir()
    text = (verified / "net.shard").read_text().replace("./my_ops", "../my_ops")
    (verified / "programs" / "net.shard").write_text(text)
    done = warm.run([*SHARDC, "run", "programs/net.shard", "--ranks", "4"], cwd=verified)
    assert done.returncode == 0 and "runs ../my_ops.py" in done.stdout, done.stdout + done.stderr
