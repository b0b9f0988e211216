"""The last collectives of each rank are on record, with what they are for, however the rank ends."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from shardlang.runtime.comm.record import BYTES, CALL, HEAD, KEPT, TEXTS, LoggedWork, about, record, spans
from shardlang.runtime.launch.reports import RankStatus, members, read, records
from tests import warm
from tests.emit.sources import emitted_files, written

PROGRAM = """
use std.nn: Linear

dim batch = 16, d = 8, e = 8

model Net() {
  param table: [d, e] = normal(0.1)
  layer up = Linear(e, d)
  layer down = Linear(d, e)

  forward(x: [batch, d]) -> [batch, e] {
    h = relu(x @ table)
    return h |> up |> down
  }
}

strategy split {
  mesh dp = 2, mp = 2
  split batch over dp
  split d over mp
  zero 3 over dp
}

strategy staged {
  mesh pp = 2, dp = 2
  split batch over dp
  stages over pp {
    0: up
    1: down
  }
  microbatches 2
  zero 1 over dp
}

train {
  model = Net()
  data = random(x: [batch, d], label: [batch, e], batches = 4)
  eval = random(x: [batch, d], label: [batch, e], batches = 1)
  loss = mse_loss(model(x), label)
  optimizer = sgd(lr = 0.1)
  clip = 1.0
  epochs = 4
}
"""


def recorded(folder: Path, strategy: str) -> dict[int, RankStatus]:
    """The ranks of a run that has ended well, by their records."""
    written(folder, PROGRAM, 4, strategy, "net.shard")
    done = warm.run([sys.executable, "main.py", "--device", "cpu", "--log-dir", "logs"], cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    found = records(folder / "logs", range(4))
    assert sorted(found) == [0, 1, 2, 3]
    return found


def kinds(seen: RankStatus) -> set[tuple[str, str]]:
    return {(call.what, call.site) for call in seen.calls}


def test_all_that_ranks_send_is_on_record(tmp_path: Path) -> None:
    """Conversions of forward and of backward with their lines, ZeRO, the norm and figures, the evaluation."""
    for seen in recorded(tmp_path, "split").values():
        assert (seen.phase, seen.step, seen.size, len(seen.calls)) == ("ended", 16, 4, KEPT)
        numbers = [call.number for call in seen.calls]
        assert numbers == [*range(numbers[0], numbers[0] + KEPT)]
        assert all(0 < call.begun <= call.waited <= call.ended for call in seen.calls)
        assert {call.step for call in seen.calls} >= {14, 15, 16}
        found = kinds(seen)
        lines = {site.partition("  ")[0] for _, site in found}
        assert "net.shard:12" in lines and "" not in lines
        assert {call.site for call in seen.calls if call.over == "mp"} == {
            "net.shard:12  h = relu(x @ table)",
            "std.nn:10  return einsum(x, weight -> [..., out]) + bias   (down)",
        }
        assert ("all-reduce", "the norm of the gradients") in found
        assert ("all-reduce", "figures") in found
        assert any(site.startswith("rows of ") and "table" in site for _, site in found)
        assert any(what == "reduce-scatter" and site.startswith("gradients of ") for what, site in found)
        dp, mp = (seen.rank % 2, seen.rank % 2 + 2), (seen.rank // 2 * 2, seen.rank // 2 * 2 + 1)
        over = {call.over: call.ranks for call in seen.calls}
        assert (over["dp"], over["mp"], over["rank"]) == ({*dp}, {*mp}, {0, 1, 2, 3})
        assert all(call.size > 0 for call in seen.calls)


def test_messages_of_stages_are_on_record(tmp_path: Path) -> None:
    for seen in recorded(tmp_path, "staged").values():
        pairs = {(call.what, call.over) for call in seen.calls}
        other = (seen.rank + 2) % 4
        assert {
            ("send", f"from rank {seen.rank} to rank {other}"),
            ("receive", f"from rank {other} to rank {seen.rank}"),
        } <= pairs
        sent = [call for call in seen.calls if call.what == "send" and call.kind]
        assert {(call.kind, call.stage, call.microbatch) for call in sent} == {
            ("F" if seen.rank < 2 else "B", seen.rank // 2, number) for number in (0, 1)
        }
        assert {call.site for call in sent} == {
            f"{'values to' if seen.rank < 2 else 'gradients to'} stage {int(seen.rank < 2)}, microbatch {n}"
            for n in (0, 1)
        }
        assert any(what == "all-gather" and site.startswith("updated rows of ") for what, site in kinds(seen))


class Alone:
    axes, ranks = ("dp",), (0, 2)


class Done:
    def is_completed(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _of_this_test() -> Iterator[None]:
    yield
    record.forget()


def test_the_file_is_there_while_the_rank_lives(tmp_path: Path) -> None:
    """What a rank waits for is in the file before it has come: a rank that is killed writes nothing more."""

    class Coming:
        def wait(self) -> None:
            seen.append(read(tmp_path / "rank-2.collectives"))

    seen: list[RankStatus | None] = []
    record.open(tmp_path / "rank-2.collectives", tmp_path, 2, 4, 99)
    record.at_step(7)
    begun = LoggedWork("all-gather", Alone(), torch.zeros(6)).of(Coming())
    found = read(tmp_path / "rank-2.collectives")
    assert found is not None and found.waiting is None and found.last is not None
    assert (found.rank, found.size, found.token, found.step, found.last.size) == (2, 4, 99, 7, 24)
    assert found.progress == found.last.begun
    begun.wait()
    [found] = seen
    assert found is not None and found.waiting == found.last and found.waiting.ranks == {0, 2}
    assert found.progress == found.waiting.waited
    found, head = (read(tmp_path / "rank-2.collectives", called) for called in (True, False))
    assert found is not None and found.waiting is None and found.last is not None and head is not None
    assert found.progress == head.progress == found.last.ended
    assert records(tmp_path, range(4), 98) == {} and list(records(tmp_path, range(4), 99)) == [2]


def test_the_file_has_its_place_on_the_disk(tmp_path: Path) -> None:
    """Else a disk that fills up later ends the rank by SIGBUS."""
    record.open(tmp_path / "rank-0.collectives", tmp_path, 0, 1)
    with (tmp_path / "rank-0.collectives").open("rb") as file:
        assert os.lseek(file.fileno(), 0, os.SEEK_HOLE) == BYTES


def test_where_there_is_no_room_for_it_the_run_says_so(tmp_path: Path) -> None:
    for name, text in emitted_files(PROGRAM, 4, "split", "net.shard").items():
        limit = "import resource\n    resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300))\n    rt.main("
        (tmp_path / name).write_text(text.replace("rt.main(", limit))
    done = warm.run([sys.executable, "main.py", "--device", "cpu", "--log-dir", "logs"], cwd=tmp_path)
    assert done.returncode == 3
    assert done.stderr.startswith("error[SH512]: a rank's record cannot be written: File too large\n  --> ")
    assert "--log-dir DIR" in done.stderr and "SH900" not in done.stderr


def test_a_collective_that_is_no_longer_on_record_ends_in_silence(tmp_path: Path) -> None:
    record.open(tmp_path / "rank-0.collectives", tmp_path, 0, 1)
    begun = [LoggedWork("send", Alone(), torch.zeros(1), size) for size in range(KEPT + 1)]
    assert begun[0].of(Done()).is_completed()
    found = read(tmp_path / "rank-0.collectives")
    assert found is not None and [call.number for call in found.calls] == [work.number for work in begun[1:]]
    assert not any(call.ended for call in found.calls)


def test_a_row_that_is_not_whole_is_none(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.collectives"
    record.open(path, tmp_path, 0, 1)
    first, last = (LoggedWork("all-reduce", Alone(), torch.zeros(2)) for _ in range(2))
    found = read(path)
    assert found is not None and [call.number for call in found.calls] == [first.number, last.number]
    end = HEAD + (last.number + 1) * CALL.size
    record.memory[end - 8 : end] = bytes(8)  # the last word of row 2, as before it was written
    found = read(path)
    assert found is not None and [call.number for call in found.calls] == [first.number]


def test_texts_are_written_anew_where_there_are_many(tmp_path: Path) -> None:
    """Those of the collectives that are on record stay."""
    record.open(tmp_path / "rank-0.collectives", tmp_path, 0, 1)
    for number in range(2 * TEXTS + 10):
        for site in (b"always", b"%d" % number):
            with about(site):
                LoggedWork("send", Alone(), torch.zeros(1))
    found = read(tmp_path / "rank-0.collectives")
    assert found is not None and len(found.calls) == KEPT
    assert [call.site for call in found.calls[::2]] == ["always"] * (KEPT // 2)
    assert [int(call.site) for call in found.calls[1::2]] == [*range(2 * TEXTS + 10 - KEPT // 2, 2 * TEXTS + 10)]


@pytest.mark.parametrize("ranks", [(3,), (0, 1), (0, 1, 2, 3), (1, 5, 9), (0, 3, 4), (8, 0), tuple(range(16384))])
def test_members_are_read_as_they_are_written(ranks: tuple[int, ...]) -> None:
    assert members(spans(ranks)) == {*ranks}
    assert len(spans(ranks)) <= 60


def test_members_that_are_too_many_to_list_are_left_out() -> None:
    assert spans([n * n for n in range(40)]) == "" and members("") == members("1,a") == frozenset()


@pytest.mark.parametrize("content", [b"", b"x", b"SHARDREC", b"SHARDREC" + b"\xff" * (BYTES - 8), b"\0" * BYTES])
def test_a_file_that_is_no_record_is_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "rank-0.collectives").write_bytes(content)
    found = read(tmp_path / "rank-0.collectives")
    assert found is None or found.calls is not None


def test_what_is_for_something_is_said_within_only() -> None:
    outer, inner = about(b"outer"), about(b"inner")
    with outer:
        with inner:
            assert record.site == b"inner"
        assert record.site == b"outer"
    assert record.site == b""


def test_a_collective_on_a_device_ends_when_it_is_seen_to(tmp_path: Path) -> None:
    """There a wait lets the host go on: the end is looked for when the next collective begins."""

    class OnDevice:
        is_cpu, nbytes, done = False, 8, False

        def wait(self) -> None:
            pass

        def is_completed(self) -> bool:
            return self.done

    x = OnDevice()
    record.open(tmp_path / "rank-0.collectives", tmp_path, 0, 1)
    LoggedWork("all-reduce", Alone(), x).of(x).wait()  # type: ignore[arg-type]
    LoggedWork("all-gather", Alone(), x).of(x)  # type: ignore[arg-type]
    found = read(tmp_path / "rank-0.collectives")
    assert found is not None and found.waiting is not None and found.waiting.what == "all-reduce"
    x.done = True
    LoggedWork("all-gather", Alone(), x).of(x)  # type: ignore[arg-type]
    found = read(tmp_path / "rank-0.collectives")
    assert found is not None and found.waiting is None
