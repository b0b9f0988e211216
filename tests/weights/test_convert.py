"""`shardc convert`: checkpoints to torch.distributed.checkpoint and to files of weights; what must not be opened."""

from __future__ import annotations

import json
import os
import pickle
import resource
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)  # fmt: skip

from shardlang.checkpoints import index
from shardlang.cli.main import run
from shardlang.diagnostics import explain_pages
from shardlang.errors import RunError
from shardlang.runtime.dcp import written
from shardlang.runtime.dcp.foreign import Foreign
from shardlang.weights import export
from tests.bind.test_distributed_checkpoints import TENSORS, kept, numbers
from tests.cli.process import NET, shardc
from tests.mdtest import fences

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("chunk", [2**28, 40])
def test_torch_reads_what_is_written(chunk: int, here: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(written, "_CHUNK", chunk)
    kept(here)
    assert run(["convert", "step-1", "--to", "dcp", "-o", "theirs", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tensors"] == list(TENSORS)
    state = {name: torch.zeros_like(numbers(name)) for name in TENSORS}
    dcp.load(state, checkpoint_id="theirs")
    assert all(torch.equal(state[name], numbers(name)) for name in TENSORS)
    assert str(here).encode() not in Path("theirs/.metadata").read_bytes()
    assert run(["convert", "theirs", "--to", "safetensors", "-o", "again.safetensors"]) == 0
    again = load_file("again.safetensors")
    assert again.keys() == TENSORS.keys() and all(torch.equal(again[name], numbers(name)) for name in TENSORS)
    assert run(["convert", "step-1", "--to", "dcp", "-o", "theirs"]) == 1
    assert "error[SH512]" in capsys.readouterr().err


@pytest.mark.parametrize("some", [2**26, 40])
def test_a_file_of_weights_has_no_state_of_optimizers(some: int, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "_SOME", some)
    kept(here)
    assert run(["convert", ".", "--to", "safetensors", "-o", "w.safetensors"]) == 0
    found = load_file("w.safetensors")
    assert found.keys() == {"q", "k", "bias"} and all(torch.equal(found[name], numbers(name)) for name in found)


def test_a_run_starts_from_a_converted_checkpoint(here: Path) -> None:
    Path("net.shard").write_text(NET.replace("epochs = 2", 'epochs = 2\n  checkpoint = every(6, to = "kept")'))
    assert shardc("run", "net.shard", "--ranks", "2", "--save-weights", "w.safetensors", folder=here).returncode == 0
    assert run(["convert", "kept", "--to", "safetensors", "-o", "converted.safetensors"]) == 0
    assert Path("converted.safetensors").read_bytes() == Path("w.safetensors").read_bytes()


def theirs(folder: str = "theirs") -> dict[str, torch.Tensor]:
    """A checkpoint of a loop of torch; its model."""
    torch.manual_seed(1)
    model = torch.nn.Linear(3, 2).bfloat16()
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 3).bfloat16()).sum().backward()
    optimizer.step()
    dcp.save({"model": model.state_dict(), "optim": optimizer.state_dict(), "step": 3}, checkpoint_id=folder)
    return model.state_dict()


def test_a_model_of_theirs(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = theirs()
    assert run(["convert", "theirs", "--to", "safetensors", "--under", "model.", "-o", "w.safetensors"]) == 0
    found = load_file("w.safetensors")
    assert found.keys() == model.keys() and all(torch.equal(found[name], model[name]) for name in model)
    assert run(["convert", "theirs", "--to", "safetensors", "-o", "all.safetensors"]) == 0
    assert "optim.state.0.exp_avg" in load_file("all.safetensors")
    assert "as they are no tensors: 13" in capsys.readouterr().out
    assert run(["convert", "theirs", "--to", "safetensors", "--under", "net.", "-o", "none.safetensors"]) == 1
    assert run(["convert", "theirs", "--to", "dcp", "-o", "none"]) == 2
    assert "--to dcp is for a checkpoint of `shardc run`" in capsys.readouterr().err


class Runs:
    """Makes a file when it is opened by pickle."""

    def __init__(self, function: Any, *given: Any) -> None:
        self.function, self.given = function, given

    def __reduce__(self) -> tuple[Any, ...]:
        return self.function, self.given


def named(module: str, name: str) -> bytes:
    """A pickle that calls something by its name, with the name of a file."""
    return b"\x80\x04\x8c" + bytes([len(module)]) + module.encode() + b"\x8c" + bytes([len(name)]) + name.encode() + (
        b"\x93\x8c\x03ran\x85R.")  # fmt: skip


HOSTILE = {
    "os.system": pickle.dumps(Runs(os.system, "touch ran")),
    "in a record": pickle.dumps(Metadata({"w": Runs(os.mkdir, "ran")})),
    "a class's function": named("torch.distributed.checkpoint.metadata", "Metadata.__init__"),
    "what the module imports": named("torch.distributed.checkpoint.metadata", "torch.hub.load"),
    "its own os": named("torch.distributed.checkpoint.filesystem", "os.mkdir"),
    "a function of torch": named("torch", "load"),
    "a builtin": named("builtins", "eval"),
    "old protocols": b"cos\nmkdir\n(S'ran'\ntR.",
    "instances": b"(S'ran'\nios\nmkdir\n.",
    "an extension": b"\x82\x01.",
    "a number by its name": b"P1\n.",
    "half of it": pickle.dumps(Metadata({}))[:-9],
    "nothing": b"",
    "another record": pickle.dumps(MetadataIndex("w")),
    "no records": pickle.dumps(Metadata({"w": 3})),
    "no names": pickle.dumps(Metadata(3)),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_a_pickle_that_means_harm_does_not_run(case: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("theirs").mkdir()
    Path("theirs/.metadata").write_bytes(HOSTILE[case])
    assert run(["convert", "theirs", "--to", "safetensors", "-o", "w.safetensors"]) == 1
    assert capsys.readouterr().err.startswith("error[SH616]: the metadata ")
    assert sorted(path.name for path in here.iterdir()) == ["theirs"]


def test_few_bytes_do_not_fill_the_memory(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A pickle may say at which place a value is remembered: here at one of 2**27."""
    Path("theirs").mkdir()
    Path("theirs/.metadata").write_bytes(b"\x80\x02Nr\xff\xff\xff\x07.")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert run(["convert", "theirs", "--to", "safetensors", "-o", "w.safetensors"]) == 1
    assert capsys.readouterr().err.startswith("error[SH616]: the metadata is no record of a checkpoint")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000


def test_the_page_shows_what_is_said(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("theirs").mkdir()
    Path("theirs/.metadata").write_bytes(b"cos\nsystem\n(S'touch ran'\ntR.")
    assert run(["convert", "theirs", "--to", "safetensors", "-o", "w.safetensors"]) == 1
    assert capsys.readouterr().err == next(text for _, _, _, text in fences(explain_pages.page("SH616")))


def told(
    parts: list[tuple[tuple[int, ...], tuple[int, ...]]], file: str = "__0_0.distcp",
    dtype: torch.dtype = torch.float32, **info: Any,
) -> bytes:  # fmt: skip
    """The metadata of `w` [4, 2] in parts."""
    chunks = [ChunkStorageMetadata(torch.Size(a), torch.Size(b)) for a, b in parts]
    storage = {MetadataIndex("w", a): _StorageInfo(file, 0, 100, **info) for a, _ in parts}
    return pickle.dumps(Metadata({"w": TensorStorageMetadata(TensorProperties(dtype), torch.Size((4, 2)), chunks)},
                                 storage_data=storage))  # fmt: skip


WHOLE = [((0, 0), (4, 2))]
WRONG = {
    "outside": (told([((0, 0), (5, 2))]), "a part of `w` is outside of [4, 2]"),
    "not all": (told([((0, 0), (3, 2))]), "the parts of `w` are no grid"),
    "twice": (told([((0, 0), (3, 2)), ((1, 0), (3, 2))]), "the parts of `w` are no grid"),
    "another folder": (told(WHOLE, "../secret"), "'../secret' in place of a file of the folder"),
    "from the root": (told(WHOLE, "/etc/passwd"), "in place of a file of the folder"),
    "packed": (told(WHOLE, transform_descriptors=["zstd"]), "`w` is packed by ['zstd']"),
    "another type": (told(WHOLE, dtype=torch.complex64), "`w` is of torch.complex64"),
    "a negative size": (told([((0, 0), (-4, -2))]), "in place of a shape"),
    "no such file": (told(WHOLE, "none.distcp"), "`w` cannot be read: "),
    "not what is there": (told(WHOLE), "`w` "),
}


@pytest.mark.parametrize("case", WRONG)
def test_metadata_that_are_wrong(case: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    theirs()
    Path("theirs/.metadata").write_bytes(WRONG[case][0])
    assert run(["convert", "theirs", "--to", "safetensors", "-o", "w.safetensors"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("error[SH616]: ") and WRONG[case][1] in said
    assert sorted(path.name for path in here.iterdir()) == ["theirs"]


def test_a_tensor_that_means_harm_does_not_run(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("theirs").mkdir()
    torch.save(Runs(os.mkdir, "ran"), "theirs/__0_0.distcp")
    size = Path("theirs/__0_0.distcp").stat().st_size
    found = pickle.loads(told(WHOLE))
    found.storage_data = {MetadataIndex("w", (0, 0)): _StorageInfo("__0_0.distcp", 0, size)}
    Path("theirs/.metadata").write_bytes(pickle.dumps(found))
    assert run(["convert", "theirs", "--to", "safetensors", "-o", "w.safetensors"]) == 1
    assert capsys.readouterr().err.startswith("error[SH616]: `w` cannot be read: ")
    assert not Path("ran").exists() and not Path("w.safetensors").exists()


@settings(max_examples=150, deadline=None)
@given(at=st.integers(0, 10**6), byte=st.integers(0, 255), cut=st.booleans())
def test_a_damaged_tensor_is_told(tmp_path_factory: pytest.TempPathFactory, at: int, byte: int, cut: bool) -> None:
    """A byte of a file of torch's is another, or the file ends there: it is read, or its tensor is named."""
    folder = tmp_path_factory.mktemp("damaged")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        theirs()
    (file,) = folder.glob("theirs/*.distcp")
    text = bytearray(file.read_bytes())
    text[at % len(text) :] = b"" if cut else bytes([byte]) + text[at % len(text) + 1 :]
    file.write_bytes(text)
    found = Foreign(folder / "theirs")
    for name, saved in found.tensors.items():
        try:
            assert found.read(name, (0,) * len(saved.shape), saved.shape).shape == saved.shape
        except RunError as error:
            assert (error.code, error.file) == ("SH616", file)


def test_a_pipe_in_the_place_of_metadata_is_not_waited_for(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("theirs").mkdir()
    os.mkfifo("theirs/.metadata")
    assert run(["convert", "theirs", "--to", "safetensors", "-o", "w.safetensors"]) == 1
    assert "error[SH616]" in (said := capsys.readouterr().err) and "it is no plain file" in said


@pytest.mark.parametrize("form", ["dcp", "safetensors"])
def test_few_numbers_are_in_memory_at_a_time(form: str, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three tensors of 24 MB, by 1 MB at a time, each way."""
    program = NET.replace("d = 4", "d = 6_000_000").replace("batch = 8", "batch = 1").replace("epochs = 2", "steps = 1")
    program = program.replace("sgd(lr = 0.1)", "adam(lr = 0.1)\n  checkpoint = every(1)")
    Path("net.shard").write_text(program)
    done = shardc("run", "net.shard", "--ranks", "1", folder=here)
    assert done.returncode == 0, done.stderr
    monkeypatch.setattr(export, "_SOME", 2**20)
    monkeypatch.setattr(written, "_CHUNK", 2**20)
    monkeypatch.setattr(index, "_MOST_BYTES", 2**20)
    (step,) = here.glob("**/step-1")
    tracemalloc.start()
    assert run(["convert", str(step), "--to", form, "-o", "out"]) == 0
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 16 * 2**20
