"""Data: one global order whatever the ranks and cuts; the sources; every mistake in a file named with its place."""

from __future__ import annotations

import gzip
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch

from shardlang import runtime as rt
from shardlang.errors import RunError
from shardlang.runtime import device as devices
from shardlang.runtime import random
from shardlang.runtime.comm.mesh import world
from shardlang.runtime.data.loader import Loader, load, made_ahead, order
from shardlang.runtime.device import Cpu
from tests.waits import until


@pytest.fixture(autouse=True)
def _this_rank():
    yield
    world.rank = 0


def loader(source: rt.Source, mesh: rt.Mesh, base: Path = Path(), rank: int = 0) -> Loader:
    world.rank = rank
    program = rt.Program(
        name="",
        strategy="",
        ranks=1,
        mesh=mesh,
        parameters=[],
        data=source,
        optimizers=[],
        forward=lambda p: p,
        base=base,
        seed=5,
    )
    return Loader(program, source, load(source, base))


def source(over="dp", columns="mp") -> rt.Source:
    return rt.Source(
        "random",
        batch=8,
        batches=4,
        seed=1,
        fields=[
            rt.Field("x", "f32", (8, 6), cut={0: over, 1: columns}),
            rt.Field("label", "i64", (8,), cut={0: over}, bound=10),
        ],
    )


@pytest.mark.parametrize("epoch", [1, 2])
def test_ranks_hold_the_parts_of_one_order(epoch: int) -> None:
    whole = list(loader(source((), ()), rt.Mesh()).epoch(epoch))
    assert len(whole) == 4
    for rank in range(6):
        mine = list(loader(source(), rt.Mesh(dp=2, mp=3), rank=rank).epoch(epoch))
        rows, columns = slice(rank // 3 * 4, rank // 3 * 4 + 4), slice(rank % 3 * 2, rank % 3 * 2 + 2)
        for [part], [part_whole] in zip(mine, whole, strict=True):
            (x, label), (x_whole, label_whole) = part.values(), part_whole.values()
            assert (x == x_whole[rows, columns]).all()
            assert (label == label_whole[rows]).all()


class Slow(Cpu):
    """A kind for which a thread makes batches."""

    batches_ahead = 2
    taken: ClassVar[list[str]] = []
    sent: ClassVar[list[str]] = []

    def take(self, device: torch.device) -> dict[str, object]:
        self.taken.append(threading.current_thread().name)
        return {}

    def copied(self, x: torch.Tensor, device: torch.device) -> torch.Tensor:
        self.sent.append(threading.current_thread().name)
        return super().copied(x, device)


def test_a_thread_makes_batches_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two beside the one that is used, in their order, and sent to the device: those of the next two steps are on their
    way before a step ends. The thread has taken the device, and ends with the batches.
    """
    whole = list(loader(source((), ()), rt.Mesh()).epoch(1))
    monkeypatch.setitem(devices.KINDS, "cpu", Slow())
    watched, fields, found = loader(source((), ()), rt.Mesh()), 2, []
    for number, (batch, expected) in enumerate(zip(watched.epoch(1), whole, strict=True)):
        until(lambda ahead=number + 3: len(Slow.sent) >= fields * min(ahead, 4))
        found.append(len(Slow.sent))
        assert all(torch.equal(batch[0][name], expected[0][name]) for name in expected[0])
    assert found == [3 * fields, 4 * fields, 4 * fields, 4 * fields]
    assert set(Slow.sent) == set(Slow.taken) == {"batches_0"}
    assert not [thread for thread in threading.enumerate() if thread.name == "batches_0"]


def test_what_a_batch_raises_ahead_is_raised_in_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(devices.KINDS, "cpu", Slow())

    def made() -> Iterator[int]:
        yield 1
        raise RunError("SH502", "the file is gone")

    batches = made_ahead(made(), torch.device("cpu"))
    assert next(batches) == 1
    with pytest.raises(RunError, match="the file is gone"):
        next(batches)


def test_uneven_cuts() -> None:
    uneven = rt.Source(
        "random", batch=8, batches=1, fields=[rt.Field("x", "f32", (8, 5), cut={0: "dp"}, sizes={0: (5, 2, 1)})]
    )
    whole = next(loader(uneven, rt.Mesh(dp=1)).epoch(1))[0]["x"]
    parts = [next(loader(uneven, rt.Mesh(dp=3), rank=rank).epoch(1))[0]["x"] for rank in range(3)]
    assert [len(p) for p in parts] == [5, 2, 1]
    assert (np.concatenate(parts) == whole.numpy()).all()


def test_the_order_depends_on_seed_and_epoch_alone() -> None:
    assert (order(100, 3, 1, True) == order(100, 3, 1, True)).all()
    assert (order(100, 3, 1, True) != order(100, 3, 2, True)).any()
    assert (order(100, 3, 1, True) != order(100, 4, 1, True)).any()
    assert sorted(order(100, 3, 1, True)) == list(range(100))
    assert (order(5, 3, 1, False) == np.arange(5)).all()


def test_random_numbers_are_those_of_the_generator() -> None:
    x, label = next(loader(source((), ()), rt.Mesh()).once())[0][0].values()
    expected = random.uniform(random.seeded_key(1, "data.x"), (8, 6), (32, 6), (0, 0))
    assert (x == expected).all()
    assert label.min() >= 0 and label.max() < 10


def test_evaluation_sees_every_example_once_and_fills_up_the_last_batch(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.arange(10.0))
    test = rt.Source("numpy", batch=4, path="a.npz", fields=[rt.Field("x", "f32", (4,))])
    batches = list(loader(test, rt.Mesh(), tmp_path).once())
    assert [rows for _, rows in batches] == [4, 4, 2]
    assert [b[0]["x"].tolist() for b, _ in batches] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 0, 0]]
    assert loader(test, rt.Mesh(), tmp_path).batches == 2


def test_digits_are_shipped_and_split() -> None:
    def digits(split: str) -> Loader:
        return loader(
            rt.Source(
                "digits",
                batch=30,
                split=split,
                shuffle=False,
                fields=[rt.Field("image", "f32", (30, 64)), rt.Field("label", "i64", (30,), bound=10)],
            ),
            rt.Mesh(),
        )

    assert (digits("train").dataset.length, digits("test").dataset.length) == (1437, 360)
    image, label = next(digits("train").epoch(1))[0].values()
    assert label[:8].tolist() == [1, 2, 3, 4, 6, 7, 8, 9]
    assert image.min() == 0.0 and image.max() == 1.0


def idx(path: Path, array: np.ndarray, magic: int) -> None:
    head = struct.pack(f">{1 + array.ndim}I", magic, *array.shape)
    content = head + array.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def mnist(batch: int = 2) -> rt.Source:
    return rt.Source(
        "mnist",
        batch=batch,
        path=".",
        split="test",
        fields=[rt.Field("image", "f32", (batch, 1, 28, 28)), rt.Field("label", "i64", (batch,), bound=10)],
    )


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_mnist_is_normalised(tmp_path: Path, suffix: str) -> None:
    images = np.zeros((3, 28, 28))
    images[1] = 255
    idx(tmp_path / f"t10k-images-idx3-ubyte{suffix}", images, 2051)
    idx(tmp_path / f"t10k-labels-idx1-ubyte{suffix}", np.array([7, 2, 1]), 2049)
    [part], _ = next(loader(mnist(), rt.Mesh(), tmp_path).once())
    image, label = part.values()
    assert image.shape == (2, 1, 28, 28) and label.tolist() == [7, 2]
    np.testing.assert_allclose(image[0].numpy(), -0.1307 / 0.3081, rtol=1e-6)
    np.testing.assert_allclose(image[1].numpy(), (1 - 0.1307) / 0.3081, rtol=1e-6)


def told(source: rt.Source, base: Path) -> RunError:
    with pytest.raises(RunError) as caught:
        load(source, base)
    assert caught.value.code == "SH502"
    return caught.value


def test_mistakes_in_mnist_files(tmp_path: Path) -> None:
    images, labels = tmp_path / "t10k-images-idx3-ubyte.gz", tmp_path / "t10k-labels-idx1-ubyte.gz"
    assert "missing" in str(told(mnist(), tmp_path))
    images.write_bytes(b"no gzip")
    assert "the content is not: it begins with b'no gzip'" in str(told(mnist(), tmp_path))
    images.write_bytes(gzip.compress(b"12"))
    assert "ends within its header" in str(told(mnist(), tmp_path))
    idx(images, np.zeros((3, 28, 28)), 2049)
    assert "begins with 2049, where 2051 is due" in str(told(mnist(), tmp_path))
    images.write_bytes(gzip.compress(struct.pack(">4I", 2051, 3, 28, 28) + b"\0" * 100))
    assert "the header says 3 x 28 x 28 bytes; there are 100" in str(told(mnist(), tmp_path))
    idx(images, np.zeros((3, 28, 28)), 2051)
    idx(labels, np.array([1, 2]), 2049)
    assert "`image` has 3, `label` has 2" in str(told(mnist(), tmp_path))
    idx(labels, np.array([1, 12, 3]), 2049)
    assert "`label` must be from 0 to 9; example 1 has 12" in str(told(mnist(), tmp_path))


def table() -> rt.Source:
    return rt.Source(
        "csv", batch=2, path="t.csv", fields=[rt.Field("x", "f32", (2, 2)), rt.Field("label", "i64", (2,), bound=3)]
    )


@pytest.mark.parametrize(
    "text", ["1,2,0\n3,4,2\n", "label,x0,x1\n0,1,2\n\n2,3,4\n", "x.0,other,x.1,label\n1,9,2,0\n3,9,4,2\n"]
)
def test_csv_with_and_without_names(tmp_path: Path, text: str) -> None:
    (tmp_path / "t.csv").write_text(text)
    [part], _ = next(loader(table(), rt.Mesh(), tmp_path).once())
    x, label = part.values()
    assert x.tolist() == [[1, 2], [3, 4]] and label.tolist() == [0, 2]


def test_csv_with_header_and_delimiter_by_hand(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("1;2;0\n3;4;2\n")
    given = rt.Source("csv", batch=1, path="t.csv", delimiter=";", header=False, fields=table().fields)
    assert load(given, tmp_path).length == 2


@pytest.mark.parametrize(
    ("text", "message", "line"),
    [
        ("", "the file is empty", None),
        ("1,2\n", "the line has 2 values, where the fields need 3", 1),
        ("1,2,0\n3,4\n", "the line has 2 values, where 3 are due", 2),
        ("1,2,0\n\n3,x,1\n", "value 2 is 'x', which is no number", 3),
        ("1,2,0\n3,4,0.5\n", "`label` must be whole numbers; the line has 0.5 in column 3", 2),
        ("1,2,0\n3,4,3\n", "`label` must be from 0 to 2; the line has 3 in column 3", 2),
        ("x0,label\n1,0\n", "field `x` needs 2 columns; the header names 1 of it", 1),
    ],
)
def test_mistakes_in_csv_files(tmp_path: Path, text: str, message: str, line: int | None) -> None:
    (tmp_path / "t.csv").write_text(text)
    error = told(table(), tmp_path)
    assert (error.message, error.line, error.file) == (message, line, tmp_path / "t.csv")


def test_mistakes_in_numpy_files(tmp_path: Path) -> None:
    archive = rt.Source(
        "numpy", batch=2, path="a.npz", fields=[rt.Field("x", "f32", (2, 3)), rt.Field("y", "f32", (2,))]
    )
    path = tmp_path / "a.npz"
    assert "missing" in str(told(archive, tmp_path))
    path.write_bytes(b"nothing of the kind")
    assert "neither .npz nor .npy: it begins with b'nothing '" in str(told(archive, tmp_path))
    np.savez(path, x=np.zeros((4, 3)))
    assert "there is no array `y`; there are: `x`" in str(told(archive, tmp_path))
    np.savez(path, x=np.zeros((4, 2)), y=np.zeros(4))
    assert "an example of `x` has shape [2], where the program has [3]" in str(told(archive, tmp_path))
    np.savez(path, x=np.zeros((4, 3)), y=np.zeros(5))
    assert "`x` has 4, `y` has 5" in str(told(archive, tmp_path))
    np.savez(path, x=np.float32(1), y=np.zeros(5))
    assert "a single number" in str(told(archive, tmp_path))


def test_an_unknown_source_is_named() -> None:
    assert "`images` is not there yet" in str(told(rt.Source("images", batch=1, fields=[]), Path()))
