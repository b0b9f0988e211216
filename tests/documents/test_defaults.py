"""Every table of defaults in specs/ is what the declarations say, and these are what runs do."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from shardlang import driver
from shardlang import runtime as rt
from shardlang.check.declared import DeclaredKind, default, signature
from shardlang.check.model.operators import operator_names
from shardlang.check.program import Training
from shardlang.check.train.data_sources import SOURCES
from shardlang.cli.reference import DECLARED
from shardlang.diagnostics.diagnostic import Sink
from shardlang.ops.declaration import REGISTRY, SYMBOLS
from shardlang.runtime.data.loader import Loader, load
from shardlang.runtime.state.optimizers import KINDS, optimizer
from shardlang.runtime.step.learning_rate import scheduled
from tests.documents.bless import SPECS
from tests.emit.sources import main_file, planned

ROOT = SPECS.parent
ALL: Mapping[str, DeclaredKind] = {name: one for *_, declared in DECLARED for name, one in declared.items()}


def tables(path: Path) -> Iterator[tuple[list[str], list[list[str]]]]:
    """Each table of a page: its header, and its rows."""
    rows: list[list[str]] = []
    for line in [*path.read_text("utf-8").splitlines(), ""]:
        if line.startswith("|"):
            rows.append([cell.strip() for cell in line.strip("|").split("|")])
        elif rows:
            yield rows[0], rows[2:]
            rows = []


def of_defaults() -> list[tuple[str, list[str]]]:
    """Of all pages the rows below a header `arguments and defaults`: the name, and what the row says."""
    found = []
    for path in sorted(SPECS.glob("*.md")):
        for header, rows in tables(path):
            if "arguments and defaults" in header:
                at = header.index("arguments and defaults")
                found += [(row[0].strip("`"), re.findall(r"`([^`]+)`", row[at])) for row in rows]
    return found


def test_tables_of_defaults_are_those_of_the_declarations() -> None:
    rows = of_defaults()
    for name, said in rows:
        declared = [*(d[name] for *_, d in DECLARED if name in d)]
        assert said in [[f"{p.name}{default(p)}" for p in one.params] for one in declared], name
    assert {name for name, _ in rows} == {*ALL}


def test_the_table_of_families_has_all_operators() -> None:
    _, rows = next(t for t in tables(SPECS / "operators.md") if t[0][0] == "family")
    named = {name for row in rows for name in re.findall(r"\w+", row[1])}
    assert set(operator_names()) - set(SYMBOLS.values()) <= named


def test_signatures_in_prose_are_those_of_the_declarations() -> None:
    """`**`attention(q, k, ...)`**`: an operator's, at the head of what a page says of it."""
    found = re.findall(r"\*\*`(\w+)(\([^`]+\))`\*\*", (SPECS / "operators.md").read_text("utf-8"))
    assert len(found) >= 2
    for name, arguments in found:
        assert f"{name}{' '.join(arguments.split())}" == re.sub(r": \w+", "", signature(name, REGISTRY[name].params))


def test_the_table_of_settings() -> None:
    header, rows = next(t for t in tables(SPECS / "training.md") if t[0][0] == "setting")
    assert header == ["setting", "default", "meaning"]
    said = {row[0].strip("`"): row[1] for row in rows}
    given = {f.name: f.default for f in dataclasses.fields(Training) if f.default is not dataclasses.MISSING}
    assert said == {name: "none" if default is None else str(default) for name, default in given.items()}


def test_the_table_of_rules_of_a_strategy() -> None:
    _, rows = next(t for t in tables(SPECS / "strategies.md") if t[0] == ["rule", "without it"])
    plan = planned((ROOT / "examples" / "digits.shard").read_text("utf-8"), 8)
    losses = [op for op in plan.graph.ops if op.operator == "cross_entropy"]
    assert plan.strategy and len(losses) == 1 and {p.zero for p in plan.params.values()} == {0}
    found = {
        "zero": "0", "bucket gradients": f"{plan.bucket_bytes // 10**6}MB", "microbatches": str(plan.microbatches),
        "strict": str(plan.strict).lower(), "chunks": str(losses[0].attrs.get("chunks", 1)),
    }  # fmt: skip
    assert {row[0].strip("`"): row[1] for row in rows} == found


def test_the_rates_in_the_table() -> None:
    _, [row] = next(t for t in tables(SPECS / "schedules.md") if t[0][0] == "step")
    rates = [scheduled(0.1, rt.WarmupCosine(3, 0.01), step, 8) for step in range(1, 9)]
    assert [float(cell) for cell in row[1:]] == pytest.approx(rates, abs=5e-6)


@pytest.mark.parametrize("kind", list(KINDS))
def test_an_optimizer_runs_with_the_defaults_that_are_declared(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a program was compiled without some."""
    given = {**ALL[kind].defaults, "lr": 0.1}
    assert optimizer(kind, [torch.zeros(3)], given).lr == optimizer(kind, [torch.zeros(3)], {"lr": 0.1}).lr == 0.1
    monkeypatch.setitem(KINDS, kind, lambda tensors, **own: own)
    assert optimizer(kind, [], {"lr": 0.1}) == given


@pytest.mark.parametrize("kind", list(KINDS))
def test_an_emitted_program_gives_an_optimizer_all_its_arguments(kind: str) -> None:
    text = (ROOT / "examples" / "quickstart.shard").read_text("utf-8")
    made = main_file(re.sub(r"optimizer = .*", f"optimizer = {kind}(lr = 0.5)", text), 8)
    arguments = [f"{name}={0.5 if value is ... else value!r}" for name, value in ALL[kind].defaults.items()]
    assert f'rt.Optimizer("{kind}", {", ".join(arguments)}),\n' in made


def test_the_names_of_what_an_optimizer_keeps() -> None:
    _, rows = next(t for t in tables(SPECS / "checkpoints.md") if t[0] == ["optimizer", "names"])
    told = {kind: re.findall(r"`(\w+)`", row[1]) for row in rows for kind in re.findall(r"`(\w+)`", row[0])}
    settings: dict[str, dict[str, Any]] = {"sgd": {"momentum": 0.9}}
    made = {kind: optimizer(kind, [torch.zeros(3)], {"lr": 0.1, **settings.get(kind, {})}) for kind in KINDS}
    assert told == {kind: list(one.kept()) for kind, one in made.items()}


def _files(folder: Path) -> dict[str, dict[str, Any]]:
    """Small files that sources can read, with the arguments that have no default."""
    (folder / "a.csv").write_text("1,0\n2,1\n3,0\n")
    np.savez(folder / "a.npz", x=np.arange(3.0), label=np.array([0, 1, 0]))
    np.arange(9, dtype=np.uint16).tofile(folder / "a.bin")
    return {
        "random": {}, "digits": {}, "numpy": {"path": "a.npz"}, "csv": {"path": "a.csv"},
        "tokens": {"path": "a.bin", "seq": 2},
    }  # fmt: skip


def _fields(kind: str) -> list[rt.Field]:
    known = SOURCES[kind].fields
    if known is None:
        return [rt.Field("x", "f32", (2,)), rt.Field("label", "i64", (2,), bound=2)]
    sizes = {"seq": 2}
    return [
        rt.Field(name, dtype or "f32", (2, *(sizes[s] if isinstance(s, str) else s for s in shape)), bound=bound)
        for name, (dtype, shape, bound) in known.items()
    ]


@pytest.mark.parametrize("kind", ["random", "digits", "numpy", "csv", "tokens"])
def test_a_source_reads_with_the_defaults_that_are_declared(kind: str, tmp_path: Path) -> None:
    required = _files(tmp_path)[kind]
    given = {name: value for name, value in SOURCES[kind].defaults.items() if value not in (..., None)}
    assert given

    def batches(arguments: Mapping[str, Any]) -> list[dict[str, list[Any]]]:
        source = rt.Source(kind, batch=2, fields=_fields(kind), **arguments)
        program = rt.Program(
            name="", strategy="", ranks=1, mesh=rt.Mesh(), parameters=[], data=source, optimizers=[],
            forward=lambda p: p, base=tmp_path, seed=5,
        )  # fmt: skip
        read = Loader(program, source, load(source, tmp_path)).epoch(1)
        return [{name: t.tolist() for name, t in part.items()} for [part], _ in zip(read, range(3), strict=False)]

    assert batches(required) == batches({**required, **given})


def test_the_paths_of_dropout_are_those_that_the_page_tells() -> None:
    page = (SPECS / "random.md").read_text("utf-8")
    program = page[page.index("```shard") :].partition("\n")[2].partition("```")[0]
    told = re.findall(r'("[\w.\[\]:]+"(?:, \d)?)', program)
    written_out = driver.emit_plan(planned(program, 1), Sink(), folded=False)
    assert written_out is not None
    emitted = re.findall(r"rt\.random\.key\(([^)]+)\)", written_out["main.py"])
    assert sorted(told) == sorted(emitted) and len(told) == 9


def test_the_order_of_examples_is_the_line_of_the_page(tmp_path: Path) -> None:
    page = (SPECS / "data.md").read_text("utf-8")
    line = page[page.index("```python\n") + 10 :].partition("```")[0]
    path = tmp_path / "a.npz"
    np.savez(path, x=np.arange(20.0))
    source = rt.Source("numpy", batch=6, fields=[rt.Field("x", "f32", (6,))], path="a.npz")
    program = rt.Program(
        name="", strategy="", ranks=1, mesh=rt.Mesh(), parameters=[], data=source, optimizers=[],
        forward=lambda p: p, base=tmp_path, seed=7,
    )  # fmt: skip
    for epoch in (1, 2):
        read = [part["x"].tolist() for [part] in Loader(program, source, load(source, tmp_path)).epoch(epoch)]
        examples = eval(line, {"numpy": np, "seed": 7, "epoch": epoch, "length": 20})
        assert read == [list(map(float, examples[s * 6 : (s + 1) * 6])) for s in range(3)]
