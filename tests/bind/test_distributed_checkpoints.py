"""Checkpoints of ours by torch.distributed.checkpoint, in place, on other ranks and in other layouts; and checkpoints
that it saves, read by ours."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from shardlang.checkpoints import folders
from shardlang.checkpoints.index import Index, Part, SavedLayout, index_of
from shardlang.checkpoints.looked_at import broken
from shardlang.checkpoints.parts import Parts
from shardlang.checkpoints.rank_files import Block, write
from shardlang.errors import RunError
from shardlang.runtime.state.checkpoints import NAMES, Piece
from shardlang.torch import CheckpointReader, CheckpointWriter
from tests.cli.process import NET, shardc
from tests.runtime.forked import on_ranks

IMPORTS = ["torch.distributed.tensor", "torch.distributed.checkpoint", "shardlang.torch.checkpoints.reader"]
MAP = """\
prefix model.
q = both.kernel transposed part 1 of 2
k = both.kernel transposed part 2 of 2
bias = both.bias
tied other.bias = both.bias
"""
# Types, shapes, and how four ranks have cut them.
TENSORS = {
    "q": (torch.float32, (6, 5), [[4, 2], [2, 3]], [0, 2, 1, 3]),
    "k": (torch.float32, (6, 5), [[6], [5]], [1]),
    "bias": (torch.bfloat16, (7,), [[3, 4]], [2, 0]),
    "k:mean": (torch.float64, (6, 5), [[1, 5], [5]], [3, 0]),
}
PLACEMENTS = {
    2: [(Shard(0),), (Shard(1),), (Replicate(),)],
    4: [(Shard(0), Shard(1)), (Shard(1), Shard(1)), (Replicate(), Shard(0))],
}


def numbers(name: str) -> torch.Tensor:
    dtype, shape, *_ = TENSORS[name]
    return (torch.arange(torch.Size(shape).numel()) * 3 + len(name)).view(shape).to(dtype)


def kept(folder: Path) -> None:
    """The checkpoint `step-1` of four ranks, and the map."""
    layouts = {name: SavedLayout(NAMES[dtype], *cut) for name, (dtype, *cut) in TENSORS.items()}
    draft, files = folders.draft_of(folder / "step-1"), []
    folders.begin(draft, 1)

    def bytes_of(block: Block):
        whole = Piece(block.name, block.lengths, (0,) * len(block.lengths), numbers(block.name))
        part = whole.part(Part(0, block.offsets, block.lengths))
        return part.contiguous().reshape(-1).view(torch.uint8).numpy()

    for rank in range(4):
        mine = {name: part for name, layout in layouts.items() if (part := layout.part_of(rank))}
        blocks = [Block(name, layouts[name].dtype, part.offsets, part.lengths) for name, part in mine.items()]
        made = write(draft, rank, blocks, bytes_of)
        files.append([made.size, made.header, made.crc32])
    folders.put(draft, folder / "step-1", index_of(1, {"batch": 8}, files, layouts))
    (folder / "their.map").write_text(MAP)


@contextmanager
def one_folder() -> Iterator[Path]:
    """A folder of all ranks, with a checkpoint."""
    folder = Path(tempfile.gettempdir()) / f"dcp-{os.getppid()}"
    if dist.get_rank() == 0:
        kept(folder)
    dist.barrier()
    yield folder
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(folder)


def placed(whole: torch.Tensor, placements: tuple, mesh) -> torch.Tensor:
    """In a layout; whole on each rank if it has too few dims."""
    dims = [each.dim for each in placements if isinstance(each, Shard)]
    return whole.clone() if max(dims, default=0) >= whole.dim() else distribute_tensor(whole.clone(), mesh, placements)


def whole_of(found: torch.Tensor) -> torch.Tensor:
    return found.full_tensor() if hasattr(found, "full_tensor") else found


def read() -> None:
    size = dist.get_world_size()
    mesh = init_device_mesh("cpu", (2,) * (size // 2))
    with one_folder() as folder:
        for placements in PLACEMENTS[size]:
            state = {name: placed(torch.zeros_like(numbers(name)), placements, mesh) for name in TENSORS}
            dcp.load(state, storage_reader=CheckpointReader(folder / "step-1"))
            for name, found in state.items():
                assert torch.equal(whole_of(found), numbers(name)), name
            theirs = {
                "both.kernel": placed(torch.zeros(5, 12), placements, mesh),
                "model.both.bias": placed(torch.zeros(7), placements, mesh),
                "other.bias": torch.zeros(7, dtype=torch.bfloat16),
            }
            dcp.load(theirs, storage_reader=CheckpointReader(
                folder / "step-1", key="theirs", names=folder / "their.map"))  # fmt: skip
            joined = torch.cat([numbers("q"), numbers("k")]).T
            assert torch.equal(whole_of(theirs["both.kernel"]), joined)
            assert torch.equal(whole_of(theirs["model.both.bias"]), numbers("bias").float())
            assert torch.equal(theirs["other.bias"], numbers("bias"))


def written() -> None:
    size = dist.get_world_size()
    mesh = init_device_mesh("cpu", (2,) * (size // 2))
    with one_folder() as folder:
        for step, placements in enumerate(PLACEMENTS[size], start=2):
            state = {name: placed(numbers(name), placements, mesh) for name in TENSORS}
            state["count"] = torch.tensor(3)
            dcp.save(state, storage_writer=CheckpointWriter(folder, step, like=folder / "step-1"))
            found = Index(folder / f"step-{step}")
            assert not list(broken(found.folder)) and found.facts["batch"] == 8 and found.step == step
            parts = Parts(found)
            for name in TENSORS:
                shape = TENSORS[name][1]
                mine = torch.from_numpy(parts.read(name, (0,) * len(shape), shape)).view(TENSORS[name][0])
                assert torch.equal(mine, numbers(name)), name
            assert parts.read("count", (), ()) == 3
            again = {name: torch.zeros_like(numbers(name)) for name in TENSORS}
            dcp.load(again, storage_reader=CheckpointReader(found.folder))
            assert all(torch.equal(again[name], numbers(name)) for name in TENSORS)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("function", ["read", "written"])
def test_on_ranks(function: str, ranks: int) -> None:
    on_ranks(__file__, function, ranks, IMPORTS)


def test_a_loop_of_torch_writes_what_a_run_goes_on_from(tmp_path: Path) -> None:
    """A run's last checkpoint, loaded and saved again by torch as one of a later step."""
    (tmp_path / "net.shard").write_text(NET.replace("epochs = 2", 'epochs = 2\n  checkpoint = every(2, to = "kept")'))
    assert shardc("run", "net.shard", "--ranks", "2", folder=tmp_path).returncode == 0
    state = {"w": torch.zeros(4)}
    dcp.load(state, storage_reader=CheckpointReader(tmp_path / "kept" / "step-6"))
    state["w"] += 1.0
    dcp.save(state, storage_writer=CheckpointWriter(tmp_path / "kept", 7, like=tmp_path / "kept" / "step-6"))
    done = shardc("run", "net.shard", "--ranks", "2", "--resume", "--set", "train.epochs=4", folder=tmp_path)
    assert done.returncode == 0 and "goes on after step 7, from" in done.stdout, done.stdout + done.stderr
    alone = shardc("checkpoint", "verify", "kept", folder=tmp_path)
    assert alone.returncode == 0, alone.stderr


def test_a_loop_that_begins_anew_does_not_write_beside_later_steps(tmp_path: Path) -> None:
    """A run that goes on takes the newest, which would be one of the loop before."""
    folder, state = tmp_path / "kept", {"w": torch.zeros(2)}
    for step in (2, 4, 6):
        dcp.save(state, storage_writer=CheckpointWriter(folder, step))
    with pytest.raises(
        CheckpointException, match=r"SH512.*2 checkpoints of later steps are here, the newest after step 6"
    ):
        dcp.save({"w": torch.ones(2)}, storage_writer=CheckpointWriter(folder, 2))
    assert sorted(path.name for path in folder.iterdir()) == ["step-2", "step-4", "step-6"]
    dcp.load(state, storage_reader=CheckpointReader(folder / "step-2"))
    assert not state["w"].any()
    (folder / "step-6" / "mine.txt").write_text("mine")
    with pytest.raises(CheckpointException, match="something else is in the way"):
        dcp.save({"w": torch.ones(2)}, storage_writer=CheckpointWriter(folder, 2, overwrite=True))
    (folder / "step-6" / "mine.txt").unlink()
    dcp.save({"w": torch.ones(2)}, storage_writer=CheckpointWriter(folder, 2, overwrite=True))
    assert [path.name for path in folder.iterdir()] == ["step-2"]
    dcp.save(state, storage_writer=CheckpointWriter(folder, 4))
    assert sorted(path.name for path in folder.iterdir()) == ["step-2", "step-4"]


def test_wrong_calls_and_states_say_so(tmp_path: Path) -> None:
    kept(tmp_path)
    with pytest.raises(ValueError, match='key is "ours"; or it is "theirs"'):
        CheckpointReader(tmp_path, key="theirs")
    with pytest.raises(CheckpointException, match=r"SH508.*the checkpoint cannot be read: No such file"):
        dcp.load({"w": torch.zeros(2)}, storage_reader=CheckpointReader(tmp_path))
    with pytest.raises(CheckpointException, match="Size mismatch"):
        dcp.load({"q": torch.zeros(2)}, storage_reader=CheckpointReader(tmp_path / "step-1"))
    (tmp_path / "their.map").write_text(MAP.replace("\nbias = both.bias\n", "\n"))
    with pytest.raises(RunError, match="the map has no line for `bias` of the weights"):
        CheckpointReader(tmp_path / "step-1", key="theirs", names=tmp_path / "their.map").read_metadata()
    for state, said in (({"lr": 0.1}, "`lr` is no tensor"), ({"x": torch.zeros(2).byte()}, "`x` is of torch.uint8")):
        with pytest.raises(CheckpointException, match=said):
            dcp.save(state, storage_writer=CheckpointWriter(tmp_path, 7))
    (tmp_path / "step-8").mkdir()
    (tmp_path / "step-8" / "mine.txt").write_text("mine")
    with pytest.raises(CheckpointException, match="something else is in the way of a checkpoint"):
        dcp.save({"x": torch.zeros(2)}, storage_writer=CheckpointWriter(tmp_path, 8))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-1", "step-8", "their.map"]
