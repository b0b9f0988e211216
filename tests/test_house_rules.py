"""The house rules that can be measured: sizes, layers that import-linter does not see, codes and their pages."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from shardlang.diagnostics import explain_pages
from tests.waits import LIMIT

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "shardlang"
MODULES = sorted(PACKAGE.rglob("*.py"))
CODE = re.compile(r"\bSH\d{3}\b")


def _name(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


@cache
def _trees() -> list[tuple[Path, ast.Module]]:
    return [(path, ast.parse(path.read_text("utf-8"))) for path in MODULES]


def test_modules_are_under_400_lines() -> None:
    long = {_name(p): n for p in MODULES if (n := len(p.read_text("utf-8").splitlines())) >= 400}
    assert not long


def test_functions_are_under_40_lines() -> None:
    found = [
        f"{_name(path)}:{node.lineno} {node.name}: {length} lines"
        for path, tree in _trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (length := (node.end_lineno or 0) - node.lineno + 1) >= 40
    ]
    assert not found, "\n".join(found)


# What takes its arguments by position alone: torch's autograd, ours that hand on to it, and struct.
_BY_POSITION = {"ctx.save_for_backward", "of_four", "applied", "_convert", "_write"}


def test_calls_have_less_than_eight_positional_arguments() -> None:
    """From the fourth on they have names, which a reader of the call sees."""
    calls = {
        f"{_name(path)}:{node.lineno}": ast.unparse(node.func)
        for path, tree in _trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and len(node.args) >= 8
    }
    assert {place: name for place, name in calls.items() if name not in _BY_POSITION} == {}
    assert set(calls.values()) == _BY_POSITION


_TREE = {f"syntax/{name}.py" for name in ("ast", "expressions", "rules")}


def test_no_two_classes_have_one_name() -> None:
    """But for nodes of the syntax tree, and for what `shardlang.plan` gives to users, which shows the plan."""
    names = Counter(
        node.name
        for path, tree in _trees()
        if _name(path) not in _TREE
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    )
    assert sorted(name for name, count in names.items() if count > 1) == ["Plan"]


def test_modules_open_with_what_they_are() -> None:
    without = [_name(p) for p, tree in _trees() if tree.body and ast.get_docstring(tree) is None]
    assert not without


def test_nothing_is_left_to_be_done() -> None:
    marks = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
    found = [_name(p) for p in MODULES if marks.search(p.read_text("utf-8"))]
    assert not found


def test_torch_is_imported_only_by_what_runs() -> None:
    found = [
        f"{_name(path)}:{node.lineno}"
        for path, tree in _trees()
        if not _name(path).startswith(("runtime/", "interpret/", "torch/", "importing/"))
        for node in ast.walk(tree)
        for name in _imported(node)
        if name.split(".")[0] == "torch"
    ]
    assert not found


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module or ""] if isinstance(node, ast.ImportFrom) else []


def test_no_folder_has_more_than_16_modules() -> None:
    counts = Counter(path.parent for path in MODULES if path.name != "__init__.py")
    assert {_name(folder): n for folder, n in counts.items() if n > 16} == {}


def test_no_module_and_no_folder_is_in_a_circle_of_imports() -> None:
    """Of folders: where neither stands inside the other."""
    imports = {(importer, imported) for importer, imported in _imports() if importer != imported}
    assert _circle(imports) == []
    assert _circle({(a.parent, b.parent) for a, b in imports if not _nested(a.parent, b.parent)}) == []


def _nested(one: Path, other: Path) -> bool:
    return one.is_relative_to(other) or other.is_relative_to(one)


def _imports() -> Iterator[tuple[Path, Path]]:
    """(module, a module that it imports), also inside functions and for types alone."""
    of_name = {_name(path).removesuffix(".py").removesuffix("/__init__"): path for path in MODULES}
    of_name = {"shardlang." + name.replace("/", "."): path for name, path in of_name.items()}
    for path, tree in _trees():
        for node in ast.walk(tree):
            for name in _imported(node):
                inner = [f"{name}.{alias.name}" for alias in node.names] if isinstance(node, ast.ImportFrom) else []
                found = [full for full in inner if full in of_name] or [name]
                yield from ((path, of_name[full]) for full in found if full in of_name)


def _circle(edges: set[tuple[Path, Path]]) -> list[str]:
    """What is left once everything is taken away that imports, or is imported by, nothing that is left."""
    while edges:
        importers, imported = {a for a, _ in edges}, {b for _, b in edges}
        rest = {(a, b) for a, b in edges if a in imported and b in importers}
        if rest == edges:
            break
        edges = rest
    return sorted(f"{_name(a)} imports {_name(b)}" for a, b in edges)


def test_texts_of_emitted_python_are_written_by_one_page() -> None:
    """No quote and no `#` beside what is put in: python_text.py writes literals, comments and docstrings."""
    found = [
        f"{_name(path)}:{piece.lineno} {piece.value!r}"
        for path, tree in _trees()
        if _name(path).startswith(("emit/", "ops/")) and _name(path) != "ops/python_text.py"
        for piece in _put_together(tree)
        if set(piece.value) & set('"#')
    ]
    assert not found, "\n".join(found)


def _put_together(tree: ast.Module) -> Iterator[ast.Constant]:
    """The fixed parts of texts that are put together, but for those of messages, which are no Python."""
    nodes = list(ast.walk(tree))
    calls, says = (n for n in nodes if isinstance(n, ast.Call)), (".report", ".refuse", "InternalError")
    messages = {id(node) for call in calls if ast.unparse(call.func).endswith(says) for node in ast.walk(call)}
    for node in nodes:
        parts = node.values if isinstance(node, ast.JoinedStr) else []
        parts = [node.left, node.right] if isinstance(node, ast.BinOp) else parts
        for part in parts if id(node) not in messages else []:
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                yield part


def test_commands_print_by_one_page() -> None:
    """cli/output.py shows names so that no terminal obeys them; JSON, and mistakes of a run, are safe in themselves."""
    found = [
        f"{_name(path)}:{node.lineno}"
        for path, tree in _trees()
        if _name(path).startswith("cli/")
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) == "print"
        and node.args
        and not ast.unparse(node.args[0]).startswith(("error", "json.dumps", "'", "f'\\nshardc: "))
    ]
    assert not found, "\n".join(found)


def test_checking_imports_nothing_heavy() -> None:
    script = (
        "import sys\nfrom shardlang.cli.main import run\nrun(['check', 'examples/quickstart.shard', '--ranks', '8'])\n"
        "print(sorted({'torch', 'numpy', 'lark'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "[]"


def _used_codes() -> set[str]:
    """Codes in strings that are nothing else: docstrings and comments that speak of one do not use it."""
    return {
        node.value
        for _, tree in _trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and CODE.fullmatch(node.value)
    } | {code for path in MODULES for code in re.findall(r"(?:error|warning)\[(SH\d{3})\]", path.read_text("utf-8"))}


def test_every_code_that_is_used_has_a_page() -> None:
    assert sorted(_used_codes() - set(explain_pages.pages())) == []


def test_every_page_is_of_a_code_that_is_used() -> None:
    assert sorted(set(explain_pages.pages()) - _used_codes()) == []


@pytest.mark.parametrize("code", list(explain_pages.pages()))
def test_a_page_is_titled_and_shows_its_code(code: str) -> None:
    page = explain_pages.page(code)
    assert explain_pages.title(code)
    # A run that fails (SH5xx) or a fault of ours (SH9xx) is nothing that checking a program could show.
    assert code >= "SH500" or f"[{code}]: " in page or code in ("SH402",)


def test_no_two_pages_are_of_one_code() -> None:
    files = [path.name for path in explain_pages.pages_folder().glob("*.md")]
    assert len(files) == len(explain_pages.pages())


def test_no_torch_is_admitted_that_was_never_tried() -> None:
    """2.13 is the oldest that the tests have run on."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    (bound,) = [d.removeprefix("torch>=") for d in project["optional-dependencies"]["train"] if d.startswith("torch")]
    assert [int(n) for n in bound.split(".")] >= [2, 13]


# What a test may still read of a clock, and why no busy machine fails it.
_CLOCKS = {
    "runtime/test_arrivals.py": "moments of several ranks, of which the order is held",
    "test_warm.py": "a command that never ends is given a limit, and runs into it",
}


def test_no_test_asserts_wall_time() -> None:
    """On a busy machine it would fail. What holds there too is the order of events, a count, or processor time;
    tests/waits.py waits, and pytest's own limit ends what never comes."""
    clock = re.compile(r"\b(?:monotonic|perf_counter|time\.time|datetime\.now)(?:_ns)?\(|\btimeout=\d")
    files = {path: path.read_text("utf-8") for path in sorted((ROOT / "tests").rglob("*.py"))}
    reads = {path.relative_to(ROOT / "tests").as_posix(): text for path, text in files.items() if clock.search(text)}
    assert {name for name in reads if name.rpartition("/")[2].startswith("test_")} == set(_CLOCKS)
    asserted = [
        f"{name}:{node.lineno}"
        for name, text in reads.items()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Assert) and clock.search(ast.unparse(node.test))
    ]
    assert not asserted, "\n".join(asserted)
    pytest_has = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["pytest"]["ini_options"]
    assert pytest_has["timeout"] == LIMIT


# What makes a plan, and its steps as values; all else asks those of `step/`.
_MAKERS = ("plan/", "step/", "emit/")
_LETTERS = re.compile(r"""(?:kind|\[0\]|for kind in|Action\(.*,)[^"'\n]{0,12}["'][FBIWE]{1,5}["']""")


def test_only_step_and_emit_read_the_order_of_steps() -> None:
    """The order of a plan's steps, which of them backward computes again, and what a kind of action does."""
    read = {
        "the order of steps": lambda node: isinstance(node.value, ast.Attribute | ast.Name)
        and ast.unparse(node.value).rpartition(".")[2] == "plan" and node.attr == "steps",
        "recompute groups": lambda node: ast.unparse(node.value).rpartition(".")[2] == "plan"
        and node.attr == "recompute",
    }  # fmt: skip
    found = [
        f"{_name(path)}:{node.lineno} reads {what}"
        for path, tree in _trees()
        if not _name(path).startswith(_MAKERS)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        for what, reads in read.items()
        if reads(node)
    ]
    assert not found, "\n".join(found)


def test_letters_of_actions_stand_in_one_table() -> None:
    """Elsewhere an action is asked what it does. Schedules write rows of letters, and read them from files."""
    writers = {"facts/actions.py", "plan/pipeline/actions.py", "plan/pipeline/schedules.py"}
    found = [
        f"{_name(path)}:{number} {row.strip()}"
        for path in MODULES
        if _name(path) not in writers
        for number, row in enumerate(path.read_text("utf-8").splitlines(), 1)
        if _LETTERS.search(row)
    ]
    assert not found, "\n".join(found)
