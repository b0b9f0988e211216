"""Data sources of a user's own, on real ranks: every example is trained on as often as it should be, however often the
run stops and on however many ranks it goes on; and ranks that read different numbers are told."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from shardlang.cli.main import run as shardc
from tests import warm
from tests.cli.process import SHARDC

# A parameter counts the steps that each example is in: its gradient is one.
NET = """
use "./my_data.shard": mine

dim batch = 12, examples = 60, one = 1

model Net {
  param seen: [examples, one] = zeros()

  forward(id: i64[batch]) -> [batch, one] {
    return embedding(id, seen)
  }
}

train {
  model = Net()
  data = mine(count = 60, batch = batch)
  loss = sum(model(id))
  optimizer = sgd(lr = 1.0)
  checkpoint = every(1, keep = 1, to = "kept")
  steps = 2
}

strategy data {
  mesh dp = auto
  split batch over dp
}

strategy parts {
  mesh dp = auto
  microbatches 2
  split batch over dp
}
"""
DECLARED = 'source mine(count: int) -> (id: i64[batch] < 60) { python "my_data.py": Mine }\n'
KINDS = {
    "by number": """
class Mine:
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        return {"id": i}
""",
    "several at once": """
import torch

class Mine(torch.utils.data.Dataset):
    def __init__(self, count):
        self.ids = torch.arange(count)

    def __len__(self):
        return len(self.ids)

    def __getitems__(self, numbers):
        return [{"id": self.ids[i]} for i in numbers]
""",
    "stream": """
class Mine:
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def examples(self, epoch, start):
        for i in range(start, self.count):
            yield {"id": (i * 7 + epoch) % self.count}
""",
    "stream in parts": """
class Mine:
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def examples(self, epoch, start, part=0, parts=1, size=1):
        for i in range(start, self.count):
            if i // size % parts == part:
                yield {"id": (i * 7 + epoch) % self.count}
""",
}


def placed(folder: Path, python: str, net: str = NET, declared: str = DECLARED) -> None:
    (folder / "my_data.py").write_text(python)
    (folder / "my_data.shard").write_text(declared)
    (folder / "net.shard").write_text(net)


def started(folder: Path, *words: str, ranks: int) -> subprocess.CompletedProcess[str]:
    """A run that goes on, or takes the place of the one before."""
    how = () if {"--resume", "--resume-anyway"} & {*words} else ("--overwrite",)
    return warm.run([*SHARDC, "run", "net.shard", "--ranks", str(ranks), *how, *words], cwd=folder)


def run(folder: Path, *words: str, ranks: int) -> str:
    done = started(folder, *words, ranks=ranks)
    assert done.returncode == 0, done.stdout + done.stderr
    return str(done.stdout)


def counts(folder: Path) -> list[int]:
    return [round(-n) for n in load_file(folder / "w.safetensors")["seen"].ravel().tolist()]


def trained(folder: Path, steps: int, ranks: int, *words: str) -> list[int]:
    """How often each example has been in a step, after so many of them."""
    run(folder, "--set", f"train.steps={steps}", "--save-weights", "w.safetensors", *words, ranks=ranks)
    return counts(folder)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_goes_on_elsewhere_without_a_repeated_or_skipped_example(kind: str, workers: int, tmp_path: Path) -> None:
    """An epoch is 5 steps; each start is on another number of ranks, and one in microbatches."""
    placed(tmp_path, KINDS[kind], NET.replace("batch = batch)", f"batch = batch, workers = {workers})"))
    first = trained(tmp_path, 2, 2)
    assert sorted(first) == [0] * 36 + [1] * 24
    second = trained(tmp_path, 3, 3, "--resume", "--strategy", "parts" if workers else "data")
    assert sorted(second) == [0] * 24 + [1] * 36 and all(a <= b for a, b in zip(first, second, strict=True))
    assert trained(tmp_path, 5, 1, "--resume") == [1] * 60
    third = trained(tmp_path, 7, 4, "--resume")
    assert sorted(third) == [1] * 36 + [2] * 24
    assert trained(tmp_path, 10, 2, "--resume", "--strategy", "parts") == [2] * 60


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["stream", "stream in parts"])
def test_a_run_that_goes_on_reads_a_stream_from_there(kind: str, tmp_path: Path) -> None:
    """What comes before is not asked for again: a stream may be long."""
    told = "        print(start, file=open('starts', 'a'))\n"
    placed(tmp_path, KINDS[kind].replace("        for i in range(start", f"{told}        for i in range(start"))
    trained(tmp_path, 2, 2)
    assert {*(tmp_path / "starts").read_text().split()} == {"0"}
    (tmp_path / "starts").unlink()
    trained(tmp_path, 3, 2, "--resume")
    assert {*(tmp_path / "starts").read_text().split()} == {"24"}


@pytest.mark.slow
def test_the_order_is_the_runs_and_the_same_on_any_number_of_ranks(tmp_path: Path) -> None:
    placed(tmp_path, KINDS["by number"])
    alone = trained(tmp_path, 2, 1)
    assert alone == trained(tmp_path, 2, 3) and alone != [1] * 24 + [0] * 36
    placed(tmp_path, KINDS["by number"], NET.replace("batch = batch)", "batch = batch, shuffle = false)"))
    assert trained(tmp_path, 2, 2) == [1] * 24 + [0] * 36


def failed(folder: Path, *words: str, ranks: int = 2) -> str:
    done = started(folder, *words, ranks=ranks)
    assert done.returncode == 3, done.stdout + done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return str(done.stderr)


RANDOM = """
import os

class Mine:
    def __init__(self, count):
        self.count, self.read = count, 0

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        self.read += 1
        return {{"id": {id}}}
"""


@pytest.mark.slow
def test_ranks_that_read_different_numbers_are_told_before_a_step(tmp_path: Path) -> None:
    net = NET.replace("batch = batch)", "batch = batch, shuffle = false)")
    placed(tmp_path, RANDOM.format(id="os.getpid() % 60 if i == 7 else i"), net)
    said = failed(tmp_path, ranks=4)
    assert "error[SH613]: rank " in said and "reads another `id` than rank 0, of example 7 in epoch 1" in said, said
    assert not (tmp_path / "kept").exists() or not any((tmp_path / "kept").iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1])
def test_a_rank_that_reads_an_example_in_two_ways_is_told(workers: int, tmp_path: Path) -> None:
    """On every rank alike: the numbers depend on how often the object was asked."""
    net = NET.replace("batch = batch)", f"batch = batch, workers = {workers}, shuffle = false)")
    placed(tmp_path, RANDOM.format(id="i if self.read < 12 else 3"), net)
    assert "error[SH613]: rank 0 reads `id` of example 0 in epoch 1 in two ways" in failed(tmp_path, ranks=1)


@pytest.mark.slow
def test_an_evaluation_goes_through_all_examples_once(tmp_path: Path) -> None:
    """Whose last batch is not full, by number and as a stream, ahead and not."""
    for kind in ("by number", "stream"):
        net = NET.replace("  loss =", "  eval = mine(count = 31, batch = batch, workers = 1)\n  loss =").replace(
            "loss = sum(model(id))", "loss = sum(model(id))\n  metric mean_id = mean(cast(id, f32))"
        )
        placed(tmp_path, KINDS[kind], net)
        assert "mean_id 15" in run(tmp_path, ranks=3), kind


@pytest.mark.slow
def test_examples_that_torch_computes_are_read_ahead(tmp_path: Path) -> None:
    """Also by a process that starts after its rank has computed with several threads."""
    computes = KINDS["by number"].replace("return {", "torch.ones(1000, 1000).exp_()\n        return {")
    net = NET.replace("  loss =", "  eval = mine(count = 24, batch = batch, workers = 1)\n  loss =")
    placed(tmp_path, f"import torch\n{computes}", net)
    assert "eval" in run(tmp_path, ranks=1)


@pytest.mark.slow
def test_an_object_that_has_changed_does_not_go_on_without_a_word(tmp_path: Path) -> None:
    placed(tmp_path, KINDS["by number"])
    trained(tmp_path, 2, 1)
    placed(tmp_path, KINDS["by number"] + "# another text\n")
    said = failed(tmp_path, "--resume", "--set", "train.steps=3")
    assert "error[SH508]: `data.python` is" in said
    assert trained(tmp_path, 3, 2, "--resume-anyway")
    placed(tmp_path, KINDS["by number"], NET.replace("count = 60", "count = 48"))
    assert "error[SH508]" in failed(tmp_path, "--resume", "--set", "train.steps=3")


@pytest.mark.slow
def test_an_endless_stream_trains_by_steps_alone(tmp_path: Path) -> None:
    endless = (
        KINDS["stream"]
        .replace("    def __len__(self):\n        return self.count\n", "")
        .replace("range(start, self.count)", "range(start, 10**9)")
    )
    placed(tmp_path, endless)
    assert trained(tmp_path, 5, 2) == [1] * 60
    placed(tmp_path, endless, NET.replace("steps = 2", "epochs = 1"))
    assert "error[SH502]: `Mine` has no `__len__`, and `epochs` asks for a number of them" in failed(tmp_path)
    placed(tmp_path, endless, NET.replace("  loss =", "  eval = mine(count = 60, batch = batch)\n  loss ="))
    assert "`Mine` has no `__len__`, and an evaluation goes through all examples" in failed(tmp_path)


@pytest.mark.slow
def test_a_process_that_reads_ahead_may_end(tmp_path: Path) -> None:
    """And an error in one is told as if the rank itself had read."""
    net = NET.replace("batch = batch)", "batch = batch, workers = 2, shuffle = false)")
    placed(tmp_path, RANDOM.format(id="os._exit(3) if self.read > 17 else i"), net)
    assert "error[SH502]: a process that reads ahead for `Mine` has ended" in failed(tmp_path)
    placed(tmp_path, RANDOM.format(id="1 // 0 if self.read > 17 else i"), net)
    said = failed(tmp_path)
    assert "error[SH502]: `Mine.__getitem__(" in said and "raises ZeroDivisionError" in said


def test_a_use_of_a_wrong_declaration_is_no_second_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    placed(tmp_path, KINDS["by number"], declared=DECLARED.replace("count: int", "seed: int"))
    assert shardc(["check", str(tmp_path / "net.shard")]) == 1
    said = "".join(capsys.readouterr())
    assert "`seed` of `mine` is an argument of every source" in said and "1 error" in said, said


@pytest.mark.parametrize("setting", ["int", "dim"])
def test_a_bound_is_a_setting(setting: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Which each call gives, as a number or a dim; a number of the object's beyond it is told."""
    declared = f'source mine(count: {setting}) -> (id: i64[batch] < count) {{ python "my_data.py": Mine }}\n'
    net = NET.replace("count = 60", "count = examples") if setting == "dim" else NET
    placed(tmp_path, KINDS["by number"], net, declared)
    assert sum(trained(tmp_path, 2, 2)) == 24
    placed(tmp_path, KINDS["by number"].replace('"id": i}', '"id": i + 60}'), net, declared)
    assert "error[SH502]: `id` must be from 0 to 59; example " in failed(tmp_path, ranks=1)
    # A dim of no size, and a table with fewer rows than the bound.
    for given, code in ((0, "SH213"), (70, "SH289")) if setting == "int" else ():
        placed(tmp_path, KINDS["by number"], NET.replace("count = 60", f"count = {given}"), declared)
        assert shardc(["check", str(tmp_path / "net.shard")]) == 1
        said = capsys.readouterr().out
        assert code in said, said
