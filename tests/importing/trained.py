"""`python -m tests.importing.trained [NAME...]` imports fourteen models, holds values and gradients to the module's,
and trains each on four ranks under four strategies beside a loop of torch; it prints a table of the differences.

All is in float64, so that the sums of ranks change nothing that shows."""

from __future__ import annotations

import argparse
import json
import re
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from shardlang.importing.imported import Imported, Wanted, import_module
from tests.cli.process import shardc
from tests.importing.fourteen.cases import CASES, STEPS, Case

STRATEGIES = ("data", "tensor", "both", "pipeline")
RANKS = 4
# The largest difference of a loss, and of values and gradients relative to the largest number.
CLOSE = 1e-6
EXACT = 1e-9
# The first dim of the batch.
ROWS = "examples"
_RATE = 1e-3


ACCEPTED = frozenset(("SH604", "SH608"))


def imported(name: str) -> Imported:
    """The model as `shardc import` writes it."""
    return import_module(CASES[name].build, Wanted(f"fourteen:{name}", {}, ACCEPTED, CASES[name].output))


def prepared(name: str, folder: Path) -> tuple[Imported, list[float]]:
    """Writes the program with its strategies and without dropout, its weights and data; gives the losses of torch's
    loop, too."""
    case, found = CASES[name], imported(name)
    torch.manual_seed(1)
    _, inputs = case.still()
    batches = _batches(case, inputs)
    arrays = {key: torch.cat([batch[key] for batch in batches]).numpy() for key in batches[0]}
    np.savez(folder / "data.npz", **arrays)
    text = re.sub(r"\bp = 0\.1\b", "p = 0.0", found.text)
    (folder / "net.shard").write_text(f"{text}\n{_training(case, found, inputs)}", "utf-8")
    (folder / "net.map").write_text(found.names, "utf-8")
    (folder / "net.safetensors").write_bytes(found.weights())
    return found, _theirs(case, found, batches)


def losses(folder: Path, strategy: str) -> list[float]:
    """The losses of the program's steps on four ranks."""
    line = ("run", "net.shard", "--ranks", str(RANKS), "--strategy", strategy, "--metrics", f"{strategy}.jsonl")
    done = shardc(*line, folder=folder)
    assert done.returncode == 0, done.stderr
    lines = map(json.loads, (folder / f"{strategy}.jsonl").read_text("utf-8").splitlines())
    return [line["loss"] for line in lines if "step" in line]


def _batches(case: Case, inputs: dict[str, Tensor]) -> list[dict[str, Tensor]]:
    """Inputs like the example's, and labels, of each step."""
    draws = torch.Generator().manual_seed(2)
    count = next(iter(inputs.values())).shape[0]
    found = []
    for _ in range(STEPS):
        fields = {}
        for name, each in inputs.items():
            low, high = int(each.min()), int(each.max()) + 1
            fields[name] = torch.rand(each.shape, generator=draws) if each.is_floating_point() else torch.randint(
                low, high, each.shape, generator=draws)  # fmt: skip
        found.append({**fields, "label": case.labels(count, draws)})
    return found


def _theirs(case: Case, found: Imported, batches: list[dict[str, Tensor]]) -> list[float]:
    """The losses of the module in a loop of torch, from the weights that were written."""
    torch.manual_seed(1)
    net = case.still()[0].double().train()
    net.load_state_dict({name: tensor.detach().double() for name, tensor in found.tensors.items()}, strict=False)
    optimizer = torch.optim.AdamW([each for each in net.parameters() if each.requires_grad], lr=_RATE)
    values = []
    for batch in batches:
        wide = {name: each.double() if each.is_floating_point() else each for name, each in batch.items()}
        label = wide.pop("label")
        optimizer.zero_grad()
        loss = case.theirs(net, wide, label)
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    return values


def _training(case: Case, found: Imported, inputs: dict[str, Tensor]) -> str:
    """The strategies, and a `train` of the model."""
    batch = next(iter(inputs.values())).shape[0]
    fields = [f"{name}: {_type(each)}" for name, each in inputs.items()]
    draws = torch.Generator().manual_seed(2)
    fields.append(f"label: {_type(case.labels(batch, draws))}")
    batches = ", ".join(f"{name} = {batch}" for name in dict.fromkeys((ROWS, *case.rows.values())))
    parallel = f"split {ROWS} over dp{case.rules and chr(10)}  {case.rules}".rstrip()
    sizes = ", ".join(f"{name} = {size}" for name, size in found.report["sizes"].items())
    call = f"model({', '.join(_given(name, each, case) for name, each in inputs.items())})"
    scores = f"{case.loss}({call}, label)"
    return f"""dim {batches}

strategy data {{
  mesh dp = 4
  {parallel}
}}

strategy tensor {{
  mesh mp = 4
  split {case.split} over mp
}}

strategy both {{
  mesh dp = 2, mp = 2
  {parallel}
  split {case.split} over mp
  zero 3 over dp
}}

strategy pipeline {{
  mesh pp = 2, dp = 2
  {parallel}
  stages over pp balanced
  microbatches {case.microbatches}
}}

train {{
  model = {found.report["model"]}({sizes})
  data = numpy("data.npz", {", ".join(fields)}, shuffle = false)
  loss = {scores}
  optimizer = adamw(lr = {_RATE})
  steps = {STEPS}
  precision = f64
  init = safetensors("net.safetensors", names = "net.map")
}}
"""


def _type(each: Tensor) -> str:
    return f"{'' if each.is_floating_point() else 'i64'}{_dims(each, ROWS)}"


def _dims(each: Tensor, rows: str) -> str:
    return f"[{', '.join([rows, *map(str, each.shape[1:])])}]"


def _given(name: str, each: Tensor, case: Case) -> str:
    """What the model is called with: an input whose first dim is another than the labels' gets its name."""
    return f"relabel({name} -> {_dims(each, case.rows[name])})" if name in case.rows else name


def row(name: str, strategies: tuple[str, ...]) -> str:
    """One line of the table."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        try:
            found, expected = prepared(name, Path(folder))
        except Exception as error:
            return f"{name:9} {str(error)[:2000]}"
        cells = [f"{found.text.count(chr(10)):5}", f"{found.report['largest difference']:9.1e}"]
        for strategy in strategies:
            try:
                mine = losses(Path(folder), strategy)
                worst = max(abs(a - b) for a, b in zip(mine, expected, strict=True))
                cells.append(f"{worst:9.1e}{' ' if worst <= CLOSE else '!'}")
            except Exception as error:
                cells.append(f"\n{str(error)[:1500]}")
    return f"{name:9} {' '.join(cells)} {time.monotonic() - start:5.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(CASES), metavar="NAME")
    parser.add_argument("--strategy", nargs="*", default=STRATEGIES, choices=STRATEGIES)
    given = parser.parse_args()
    heads = "  ".join(f"{each:>9}" for each in given.strategy)
    print(f"model     lines  to torch  {heads} seconds", flush=True)
    for name in given.names:
        print(row(name, tuple(given.strategy)), flush=True)


if __name__ == "__main__":
    main()
