"""`shardc` as a user meets it: what it prints, where, and with which exit code."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from pathlib import Path

import click
import jsonschema
import numpy as np
import pytest

from shardlang.cli.main import COMMANDS, run
from shardlang.cli.main import shardc as group
from shardlang.diagnostics import explain_pages
from tests.cli.process import SHARDC, shardc
from tests.plan.test_equal_layers import LLAMA, filled

ROOT = Path(__file__).resolve().parents[2]
QUICKSTART = str(ROOT / "examples" / "quickstart.shard")
BROKEN = "dim a = 1\nmodel M {\n  ? ?\n}\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    for name in COMMANDS:
        assert run([name, "--help"]) == 0
        assert "Example" in capsys.readouterr().out
    assert run(["-h"]) == 0
    text = capsys.readouterr().out
    assert [name for name in COMMANDS if name not in text] == []
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == "shardc 0.1.0\n"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("chek x.shard", "did you mean `check`?"),
        ("check", "Missing argument"),
        ("check modl.shard", "`modl.shard` does not exist; did you mean `model.shard`?"),
        ("check model", "did you mean `model.shard`?"),
        ("check folder", "`folder` is a directory"),
        ("check pipe", "`pipe` is no regular file"),
        ("check loop", "`loop` cannot be read: too many levels of symbolic links"),
        ("check latin", "`latin` is not UTF-8 (line 2, byte 10)"),
        ("check large", "`large` is larger than 4 MB"),
        ("check model.shard --ranks 0", "0 is not in the range x>=1"),
        ("check model.shard --ranks two", "'two' is not a valid integer"),
        ("check model.shard --set batch", "`batch` is not PATH=VALUE"),
        ("check model.shard --set =1", "`=1` is not PATH=VALUE"),
        ("check model.shard --set a=1 --set a=2", "`a` is given twice"),
        ("check model.shard --output xml", "'xml' is not one of"),
        ("plan model.shard", "Missing option '--ranks'"),
        ("plan model.shard --ranks 4 --rank 4", "4 is not one of the ranks 0 to 3"),
        ("compile model.shard --ranks 2", "Missing option '-o'"),
        ("run model.shard --ranks 2 --metrics none/x.jsonl", "there is no folder `none`"),
        ("explain SH999", "there is no code `SH999`"),
        ("fmt missing.shard", "`missing.shard` does not exist"),
    ],
)
def test_a_wrong_use_ends_with_2_and_says_so(
    line: str, said: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(here, "model.shard", "dim a = 1\n")
    write(here, "latin", b"dim a = 1\n\xe9\n")
    write(here, "large", "#" * 4_000_001)
    (here / "folder").mkdir()
    os.mkfifo(here / "pipe")
    os.symlink("loop", here / "loop")
    assert run(shlex.split(line)) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.out == ""


def test_check_prints_mistakes_and_ends_with_1(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(here, "broken.shard", BROKEN)
    for form in ("full", "concise", "json", "sarif"):
        assert run(["check", "broken.shard", "--output", form]) == 1
        assert "SH1" in capsys.readouterr().out


def test_check_says_in_one_line_that_all_is_fine(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", QUICKSTART]) == 0
    assert capsys.readouterr().out.count("\n") == 1
    assert run(["check", QUICKSTART, "--ranks", "8"]) == 0
    assert "8 ranks, strategy propagated" in capsys.readouterr().out
    assert run(["check", QUICKSTART, "--output", "json"]) == 0
    assert capsys.readouterr().out == ""


def test_mistakes_of_strategies_that_were_not_asked_for(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They neither stop a command nor flood what it says; without --strategy all are told."""
    good = "\nstrategy good {\n  mesh mp = auto\n  split batch over mp\n}\n"
    bad = "\nstrategy bad {\n  mesh mp = 3, tp = 2\n  split heads over mp\n  split batch over xp\n  MORE\n}\n"
    text = Path(QUICKSTART).read_text()
    for name, more, mistakes in (
        ("rules", "zero 7 over tp", "3 mistakes"),
        ("syntax", "zero over over tp", "1 mistake in its syntax"),
    ):
        write(here, f"{name}.shard", text + bad.replace("MORE", more) + good)
        line = f"strategy `bad` has {mistakes}, which `good` does not depend on"
        asked = [f"{name}.shard", "--ranks", "2", "--strategy", "good", "--set", "good.mp=2"]
        assert run(["check", *asked]) == 0
        said = capsys.readouterr().out
        assert said.count(line) == 1 and "error" not in said and f"{name}.shard: fine" in said
        for command in (["plan"], ["compile", "-o", "out"]):
            assert run([*command, *asked]) == 0
            assert capsys.readouterr().err.count(line) == (name == "syntax")
        assert run(["check", f"{name}.shard"]) == 1
        assert capsys.readouterr().out.count("error[") == 3
        assert run(["check", *asked, "--set", "bad.tp=none"]) == 1
        assert "there is no `none` here" in capsys.readouterr().out


def test_a_file_of_the_users_called_as_the_library(here: Path) -> None:
    """What is of the library is known by where it was found, not by its name."""
    write(here, "lib.shard", "fn act(x: [...]) -> [...] {\n  return relu(x)\n}\n")
    text = 'use "./lib.shard": act\n\nfn twice(x: [...]) -> [...] {\n  return act(act(x))\n}\n'
    write(here, "std.mine.shard", text)
    assert run(["check", "std.mine.shard"]) == 0
    write(here, "std.mine.shard", f"{text}\nfn wrong(x: [...]) -> [...] {{\n  return nowhere(x)\n}}\n")
    assert run(["check", "std.mine.shard"]) == 1


def test_check_of_a_strategy_that_the_file_lacks(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", QUICKSTART, "--strategy", "propagate"]) == 2
    assert "did you mean `propagated`?" in capsys.readouterr().err


def test_plan_json_follows_its_schema(capsys: pytest.CaptureFixture[str]) -> None:
    schema = json.loads((ROOT / "specs" / "plan.schema.json").read_text("utf-8"))
    assert run(["plan", QUICKSTART, "--ranks", "8", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    jsonschema.validate(plan, schema)
    first = plan["operators"][0]
    assert [o["local_shape"] for o in first["local_shapes"]["operands"]] == [[8, 8], [8, 16]]
    assert first["local_shapes"]["result"]["local_shape"] == [8, 16]
    (reduction,) = [c for c in first["collectives"] if c["kind"] == "reduce_scatter"]
    assert reduction["groups"] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert reduction["local_shape"] == [8, 4]


def test_plan_prints_what_each_rank_has(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", QUICKSTART, "--ranks", "8"]) == 0
    text = capsys.readouterr().out
    assert "{0,1,2,3} {4,5,6,7}" in text
    assert "h = x @ w" in text
    assert run(["plan", QUICKSTART, "--ranks", "8", "--rank", "5"]) == 0
    text = capsys.readouterr().out
    assert "rank 5: a = 1, b = 1" in text
    assert "h = x @ w                                                   [batch@a, hidden] +b  8:16, 0:16" in text
    assert "{4,5,6,7}" in text and "{0,1,2,3}" not in text


def test_compile_writes_a_program(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["compile", QUICKSTART, "--ranks", "8", "-o", "new/out"]) == 0
    compile((here / "new/out/main.py").read_text("utf-8"), "main.py", "exec")
    assert "torchrun --nproc-per-node 8 new/out/main.py" in capsys.readouterr().out


def test_verify_compares_simulated_ranks_with_one_device(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", QUICKSTART, "--ranks", "8", "--steps", "2"]) == 0
    assert "8 ranks compute what one device does" in capsys.readouterr().out
    assert run(["verify", QUICKSTART, "--ranks", "3"]) == 1


def test_fmt(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(here, "a.shard", "dim   a=1\n")
    path.chmod(0o640)
    assert run(["fmt", "--check", "a.shard"]) == 1
    assert run(["fmt", "--diff", "a.shard"]) == 0
    assert "-dim   a=1\n+dim a = 1\n" in capsys.readouterr().out
    assert path.read_text() == "dim   a=1\n"
    os.symlink("a.shard", here / "link.shard")
    assert run(["fmt", "link.shard"]) == 0
    assert path.read_text() == "dim a = 1\n"
    assert path.stat().st_mode & 0o777 == 0o640
    assert (here / "link.shard").is_symlink()
    assert run(["fmt", "--check", "a.shard"]) == 0
    assert sorted(p.name for p in here.iterdir()) == ["a.shard", "link.shard"]


def test_fmt_leaves_what_it_cannot_read(here: Path) -> None:
    path = write(here, "broken.shard", BROKEN)
    assert run(["fmt", "broken.shard"]) == 1
    assert path.read_text() == BROKEN


def test_fmt_of_the_standard_input() -> None:
    result = shardc("fmt", "-", input="dim  a=1\n")
    assert (result.returncode, result.stdout) == (0, "dim a = 1\n")


def test_a_deep_program_comes_from_the_standard_input(here: Path) -> None:
    """It is checked twice, the second time with its layers cut where a stage begins."""
    text = filled({
        "RULE": "stages over pp balanced", "mesh dp": "mesh pp = 2, dp", "MORE": "", "LAYERS": "20",
    }, LLAMA)  # fmt: skip
    path = write(here, "deep.shard", text)
    for command in ("check", "plan"):
        piped, named = (shardc(command, name, "--ranks", "8", input=text) for name in ("-", str(path)))
        assert (piped.returncode, named.returncode) == (0, 0), piped.stderr
        assert piped.stdout.replace("<stdin>", str(path)) == named.stdout


def test_explain(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain"]) == 0
    assert [line[:5] for line in capsys.readouterr().out.splitlines()][: len(explain_pages.pages())] == [
        *explain_pages.pages()
    ]
    for code in ("SH900", "sh900", "900"):
        assert run(["explain", code]) == 0
        assert capsys.readouterr().out.startswith("# SH900: ")


def test_a_fault_of_ours_is_no_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(*_: object) -> None:
        raise KeyError("lost")

    monkeypatch.setattr("shardlang.driver.check_whole", fail)
    assert run(["check", QUICKSTART]) == 3
    text = capsys.readouterr().err
    assert "error[SH900]" in text and "SHARDC_TRACEBACK=1" in text and "Traceback" not in text
    monkeypatch.setenv("SHARDC_TRACEBACK", "1")
    assert run(["check", QUICKSTART]) == 3
    assert "Traceback" in capsys.readouterr().err


def test_a_closed_pipe_is_quiet() -> None:
    command = f"{shlex.join(SHARDC)} explain | true"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert result.stderr == ""


def test_an_encoding_without_the_characters_is_no_failure() -> None:
    result = subprocess.run(
        [*SHARDC, "check", "-"], input="dim a = §漢\n".encode(), capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )  # fmt: skip
    assert result.returncode == 1
    assert b"SH900" not in result.stdout + result.stderr


def test_imports_that_cannot_be_read(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(here, "latin.shard", b"\xe9")
    (here / "folder").mkdir()
    os.symlink("loop.shard", here / "loop.shard")
    uses = 'use "./latin.shard": A\nuse "./folder": B\nuse "./loop.shard": C\nuse "./none.shard": D\n'
    write(here, "program.shard", uses)
    assert run(["check", "program.shard", "--output", "concise"]) == 1
    assert [line.partition(": ")[2] for line in capsys.readouterr().out.splitlines()] == [
        "error[SH401]: `./latin.shard` is not UTF-8 (line 1, byte 0)",
        "error[SH401]: `./folder` is a directory",
        "error[SH401]: `./loop.shard` cannot be read: too many levels of symbolic links",
        "error[SH203]: there is no file `./none.shard`",
    ]


def test_through_a_link_all_paths_are_relative_to_the_file_itself(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of imports, of theirs and of data: one rule, whatever lies beside a link to a file or to a folder."""
    for name in ("real/parts", "links/parts", "other"):
        (here / name).mkdir(parents=True)
    for folder in ("real", "links"):
        np.savez(here / folder / "data.npz", x=np.full((8, 4), 1.0 if folder == "real" else 7.0, np.float32))
    net = "model Net {\n  param w: [d] = ones()\n  forward(x: [batch, d]) -> [batch, d] {\n    return x * w\n  }\n}\n"
    write(here, "other/net.shard", f'use "./dims.shard": batch, d\n\n{net}')
    os.symlink("../../other/net.shard", here / "real" / "parts" / "net.shard")
    write(here, "other/dims.shard", "dim batch = 4, d = 4\n")
    for wrong in ("links/parts/net.shard", "links/dims.shard", "real/parts/dims.shard", "dims.shard", "net.shard"):
        write(here, wrong, "dim batch = 3, d = 5\n")
    program = (
        'use "./parts/net.shard": Net\nuse "../other/dims.shard": batch, d\n\ntrain {\n  model = Net()\n'
        '  data = numpy("data.npz", x: [batch, d])\n  loss = mean(square(model(x)))\n  optimizer = sgd(lr = 0.1)\n'
        "  steps = 1\n}\n"
    )
    write(here, "real/main.shard", program)
    os.symlink("../real/main.shard", here / "links" / "main.shard")
    os.symlink("real", here / "folder")
    for number, name in enumerate(("links/main.shard", "folder/main.shard", "real/main.shard")):
        assert run(["run", name, "--ranks", "1", "--simulate", "--metrics", f"{number}.jsonl"]) == 0
        assert json.loads((here / f"{number}.jsonl").read_text())["loss"] == 1.0
        capsys.readouterr()
        assert run(["compile", name, "--ranks", "1", "-o", f"out{number}"]) == 0
        assert capsys.readouterr().out.endswith(" --base real\n")
    write(here, "other/net.shard", BROKEN)
    assert run(["check", "links/main.shard", "--output", "concise"]) == 1
    assert capsys.readouterr().out.startswith(f"{here}/other/net.shard:3:3: ")


def test_what_needs_train_says_so_of_a_file_without_one(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(here, "m.shard", "dim n = 4\n\nmodel M {\n  forward(x: [n]) -> [n] {\n    return relu(x)\n  }\n}\n")
    there = ["--cluster", "std.clusters.h100_pod"]
    for command, *more in (
        ["plan"],
        ["why", "x"],
        ["report", *there, "-o", "page.html"],
        ["tune", *there],
        ["compile", "-o", "out"],
        ["run"],
    ):
        assert run([command, "m.shard", *more, "--ranks", "1"]) == 1
        assert "error[SH402]: `m.shard` has no `train`, so there is " in capsys.readouterr().err
    assert run(["check", "m.shard", "--ranks", "1"]) == 0


def test_no_command_takes_a_number_that_is_none_or_infinite() -> None:
    taken = [
        (name, option.name, text)
        for name in COMMANDS
        for option in getattr(group.get_command(click.Context(group), name), "params", ())
        if isinstance(option.type, click.types.FloatParamType)
        for text in ("nan", "inf", "-inf", "1e400", "-1")
        if _taken(option, text)
    ]
    assert taken == []


def _taken(option: click.Parameter, text: str) -> bool:
    try:
        option.type.convert(text, option, None)
    except click.BadParameter:
        return False
    return True
