"""The compiler from Python gives what the commands give, as frozen values."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import shardlang
from shardlang.cli import main

ROOT = Path(__file__).parent.parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.shard"))
# The ranks and the strategy of an example that fits no 8 ranks.
ON = {"llama": (512, "large")}
QUICKSTART = ROOT / "examples" / "quickstart.shard"
BAD = """
use std.nn: Linear

dim batch = 6, d = 8

model Net() {
  layer up = Linear(d, dd)

  forward(x: [batch, d]) -> [batch, d] {
    return up(x)
  }
}
"""


def told(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The standard output of a command that ends well."""
    assert main.run([*map(str, arguments)]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_a_plan_is_that_of_the_command(example: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ranks, strategy = ON.get(example.stem, (8, None))
    plan = shardlang.plan(example, ranks=ranks, strategy=strategy)
    words = ["plan", example, "--ranks", ranks, "--json", *(["--strategy", strategy] if strategy else [])]
    assert plan.to_dict() == json.loads(told(capsys, *words))
    assert plan.rank(3).to_dict() == json.loads(told(capsys, *words, "--rank", 3))
    each = shardlang.plan(example, ranks=ranks, strategy=strategy, each_layer=True)
    assert each.to_dict() == json.loads(told(capsys, *words, "--each-layer"))


def test_a_plan_has_attributes() -> None:
    plan = shardlang.plan(QUICKSTART, ranks=8)
    assert (plan.strategy, plan.ranks, plan.mesh) == ("propagated", 8, {"a": 2, "b": 4})
    assert plan.operators[0].name == "h"
    first = plan.operators[0].local_shapes.result
    assert (first.layout, first.local_shape) == ("[batch@a, hidden] +b", (8, 16))
    first = plan.collectives[0]
    assert (first.operator, first.kind, first["from"]) == ("h", "reduce_scatter", "[batch@a, hidden] +b")
    assert [each.path for each in plan.parameters] == ["w", "w2"]
    assert plan.memory.parameters_bytes == 768 and plan.stages == () and plan.predicted is None
    view = plan.rank(5)
    assert (view.rank, [dict(each) for each in view.coordinates]) == (5, [{"a": 1, "b": 1}])
    assert view.operators[0].local_shapes.result.slices == ((8, 16), (0, 16))


def test_files_are_those_of_compile(tmp_path: Path) -> None:
    made = shardlang.compile(QUICKSTART, ranks=8)
    assert main.run(["compile", str(QUICKSTART), "--ranks", "8", "-o", str(tmp_path / "theirs")]) == 0
    assert made.write(tmp_path / "ours") == tmp_path / "ours"
    names = {path.name for path in (tmp_path / "theirs").iterdir()}
    assert names == set(made.files) == {path.name for path in (tmp_path / "ours").iterdir()}
    for name, text in made.files.items():
        assert text == (tmp_path / "theirs" / name).read_text() == (tmp_path / "ours" / name).read_text()


def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text("mine")
    with pytest.raises(OSError, match=r"main\.py"):
        shardlang.compile(QUICKSTART, ranks=8).write(tmp_path)
    assert (tmp_path / "main.py").read_text() == "mine"


def test_a_report_has_the_rows_of_the_command() -> None:
    report = shardlang.check(shardlang.source(BAD, "net.shard"))
    assert not report.ok and report.program is None and len(report) == 1
    (row,) = report
    assert (row.code, row.severity, row.primary.line, row.primary.file) == ("SH200", "error", 7, "net.shard")
    assert report[0] == row and hash(report[0]) == hash(row)
    schema = json.loads((ROOT / "specs" / "diagnostic.schema.json").read_text())
    jsonschema.validate(json.loads(report.render("json")), schema)
    assert "net.shard:7" in report.render("concise") and "SH200" in report.render() and "SH200" in repr(report)


def test_a_report_with_ranks_has_their_arithmetic() -> None:
    assert shardlang.check(QUICKSTART).ok and shardlang.check(QUICKSTART, ranks=8).ok
    assert [each.code for each in shardlang.check(QUICKSTART, ranks=6)] == ["SH316"]
    assert [each.code for each in shardlang.check(QUICKSTART, strategy="nosuch")] == ["SH301"]
    assert shardlang.check(QUICKSTART, ranks=8, set={"batch": 32}).program is not None
    assert [each.code for each in shardlang.check(QUICKSTART, set={"bath": 32})] == ["SH224"]


def test_a_program_says_what_is_in_it() -> None:
    program = shardlang.check(QUICKSTART).program
    assert program is not None and program.train
    assert [each.name for each in program.models] == ["Net"]
    assert [(each.name, each.axes) for each in program.strategies] == [("propagated", ())]
    assert [(each.path, each.shape, each.trained) for each in program.parameters] == [
        ("w", (32, 16), True), ("w2", (16, 16), True),
    ]  # fmt: skip
    assert {each.name: each.size for each in program.dims} == {"batch": 16, "input": 32, "hidden": 16, "output": 16}


@pytest.mark.parametrize("call", [shardlang.plan, shardlang.compile])
def test_mistakes_are_raised_where_there_is_no_result(call: Callable[..., object]) -> None:
    with pytest.raises(shardlang.ProgramError, match="SH316") as raised:
        call(QUICKSTART, ranks=6)
    assert [each.code for each in raised.value.report] == ["SH316"]
    assert str(raised.value).startswith("error[SH316]: the rule cuts in 2 * 4 = 8 pieces")


def test_format_and_explain() -> None:
    text = QUICKSTART.read_text()
    assert shardlang.format(text.replace(" = ", "   =  ")) == text
    with pytest.raises(shardlang.ProgramError, match="SH1"):
        shardlang.format("model {")
    assert shardlang.explain("sh304") == shardlang.explain("SH304") and "divide" in shardlang.explain("SH304")
    assert "adamw" in shardlang.explain("adamw")
    with pytest.raises(ValueError, match=r"nothing called `adamv`.*`adamw`"):
        shardlang.explain("adamv")


@pytest.mark.parametrize(
    ("call", "kind", "says"),
    [
        (lambda: shardlang.plan(QUICKSTART, ranks=0), ValueError, "at least 1, not 0"),
        (lambda: shardlang.plan(QUICKSTART, ranks="8"), TypeError, "a whole number, not str"),  # type: ignore[arg-type]
        (lambda: shardlang.plan(QUICKSTART, ranks=True), TypeError, "a whole number, not bool"),
        (lambda: shardlang.plan(3, ranks=8), TypeError, "a path or a Source, not int"),  # type: ignore[arg-type]
        (lambda: shardlang.check("nosuch.shard"), OSError, "`nosuch.shard` does not exist"),
        (lambda: shardlang.check(ROOT), OSError, "is a directory"),
        (lambda: shardlang.check(QUICKSTART, set={"a b": 1}), ValueError, "is no path"),
        (lambda: shardlang.check(QUICKSTART, set={"batch": [1]}), TypeError, "`batch` is list"),
        (lambda: shardlang.plan(QUICKSTART, ranks=8).rank(8), ValueError, "ranks 0 to 7"),
        (lambda: shardlang.plan(QUICKSTART, ranks=8).dataframe("x"), ValueError, "operators, collectives"),
        (lambda: shardlang.check(QUICKSTART).render("html"), ValueError, "full, concise, json, sarif"),
        (lambda: shardlang.source(b"x"), TypeError, "a str, not bytes"),  # type: ignore[arg-type]
    ],
)
def test_wrong_calls(call: Callable[[], object], kind: type[Exception], says: str) -> None:
    with pytest.raises(kind, match=says):
        call()


def test_values_are_frozen() -> None:
    plan, report = shardlang.plan(QUICKSTART, ranks=8), shardlang.check(QUICKSTART, ranks=6)
    for value, name in ((plan, "found"), (plan.memory, "total_bytes"), (report, "found"), (report[0], "code")):
        with pytest.raises(AttributeError):
            setattr(value, name, 1)
    with pytest.raises(TypeError):
        plan.operators[0]["name"] = "x"  # type: ignore[index]
    with pytest.raises(AttributeError, match="there is no `totl`; there are parameters_bytes"):
        _ = plan.memory.totl
    plan.to_dict()["operators"].clear()
    assert plan.operators


def test_names_stay_functions_when_packages_of_that_name_are_imported() -> None:
    import shardlang.check.program
    import shardlang.plan.planner

    for name in ("check", "plan", "format", "source"):
        assert callable(getattr(shardlang, name)), name
        assert name in dir(shardlang) and name in shardlang.__all__
    with pytest.raises(AttributeError, match="cannot be set"):
        shardlang.plan = None


def test_a_table_for_pandas() -> None:
    plan = shardlang.plan(QUICKSTART, ranks=8)
    frame = plan.dataframe()
    assert list(frame["name"]) == [each.name for each in plan.operators]
    assert plan.dataframe("parameters")["local_bytes"].sum() == plan.memory.parameters_bytes


def test_without_pandas_a_table_says_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ModuleNotFoundError, match="`pip install pandas` installs it"):
        shardlang.plan(QUICKSTART, ranks=8).dataframe()


class Tags(HTMLParser):
    """The tags of a page, all closed, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.seen, self.text, self.open = set[str](), "", list[str]()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert not any("http" in (value or "") or name.startswith("on") for name, value in attrs)
        self.seen.add(tag)
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_values_show_themselves_in_a_notebook(capsys: pytest.CaptureFixture[str]) -> None:
    evil = shardlang.check(shardlang.source(BAD.replace("dd", "</pre><script>x"), "<b>.shard"))
    plan, made = shardlang.plan(QUICKSTART, ranks=8), shardlang.compile(QUICKSTART, ranks=8)
    program = shardlang.check(QUICKSTART).program
    shown: list[Any] = [evil, plan, plan.rank(1), made, program, shardlang.check(QUICKSTART)]
    for each in shown:
        page = Tags(each._repr_html_())
        assert page.seen <= {"pre", "details", "summary"} and not page.open
        assert page.text.strip() and len(repr(each)) < 1000
    terminal = told(capsys, "plan", QUICKSTART, "--ranks", 8).splitlines()
    ours = Tags(plan._repr_html_()).text
    assert [line for line in terminal if line.strip() and line not in ours] == []


def test_importing_is_light() -> None:
    code = """
import sys, time
before = time.process_time()
import shardlang
took = time.process_time() - before
assert not {"click", "numpy", "pandas", "torch", "shardlang.driver"} & set(sys.modules)
shardlang.plan(sys.argv[1], ranks=8)._repr_html_()
assert not {"numpy", "pandas", "torch"} & set(sys.modules)
print(took)
"""
    command = [sys.executable, "-c", code, str(QUICKSTART)]
    done = [subprocess.run(command, capture_output=True, text=True, check=True) for _ in range(3)]
    assert min(float(each.stdout) for each in done) < 0.05


SHELL = """
import shardlang, sys
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

shell = InteractiveShell(config=Config({"HistoryManager": {"enabled": False}}))
shell.run_line_magic("load_ext", "shardlang")
cell = shell.run_cell_magic("shard", "net", sys.argv[1])
assert "SH200" in cell._repr_html_() and "net.shard:7" in repr(cell) and "<script" not in cell._repr_html_()
assert [each.code for each in shardlang.check(shell.user_ns["net"])] == ["SH200"]
try:
    shell.run_cell_magic("shard", "no name", sys.argv[1])
except ValueError as error:
    print(error)
"""


def test_a_cell_of_a_notebook(tmp_path: Path) -> None:
    env = {**os.environ, "IPYTHONDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", SHELL, BAD], env=env, capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "`%%shard NAME`: `no name` is no name of Python\n"), done.stderr
