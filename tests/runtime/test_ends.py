"""The end of a run tells what happened: under torchrun too, where each rank speaks for itself."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from shardlang import runtime as rt
from shardlang.launch.started import Started
from shardlang.runtime.comm import mesh
from shardlang.runtime.comm.record import PID, FlightRecorder
from shardlang.runtime.launch.alone import Alone
from shardlang.runtime.launch.answers import Answers
from shardlang.runtime.launch.meeting import rendezvous
from shardlang.runtime.launch.reports import RankStatus, records
from shardlang.terminal import signals
from tests.runtime.apart import apart, begun
from tests.runtime.test_launch import finish, start, write
from tests.waits import LIMIT, until
from tests.warm import ROOT, Warm

STORE = """
from torch.distributed import TCPStore
import time
store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(store.port, flush=True)
time.sleep(600)
"""


def test_ranks_that_lose_the_host_of_the_store_say_so(tmp_path: Path) -> None:
    """Rank 0 and the store go down together, as where their machine does."""
    with Warm([sys.executable, "-c", STORE], cwd=tmp_path, text=True, stdout=subprocess.PIPE) as store:
        assert store.stdout is not None
        port = int(store.stdout.readline())
        both = f"[os.kill(n, 9) for n in ({store.pid}, os.getpid())]"
        line = f"mesh.dp.index == 0 and rt.random.KeyParts.step == 3 and {both}"
        gone, left = apart(2, str(write(tmp_path, ranks=2, line=line)), "--device", "cpu", folder=tmp_path, port=port)
        store.kill()
    assert gone.returncode == -9 and left.returncode == 3
    assert "Traceback" not in left.stderr
    assert left.stderr.count(f"error[SH501]: rank 1 lost the store of the run at 127.0.0.1:{port}: that host") == 1


def ended(folder: Path, line: str, ranks: int = 3, **more: Any) -> tuple[str, Path]:
    """What a run says that ends early, and its folder of logs."""
    code, _, said = finish(start(write(folder, line=line, steps=1000, ranks=ranks, **more)))
    assert code == 3 and "Traceback" not in said
    return said, folder / "logs"


HERE = socket.gethostname()
AT_3 = "mesh.dp.index == 1 and rt.random.KeyParts.step == 3 and (time.sleep(0.3), {act})"


@pytest.mark.parametrize(
    ("act", "how"),
    [
        ("os.kill(os.getpid(), 9)", "was killed by SIGKILL"),
        ("os._exit(7)", "ended with exit code 7"),
        ("1 / 0", "failed: ZeroDivisionError: division by zero"),
    ],
)
def test_an_end_says_where_the_rank_was_and_who_waits(tmp_path: Path, act: str, how: str) -> None:
    said, logs = ended(tmp_path, AT_3.format(act=act))
    assert said.startswith(f"error[SH501]: rank 1 {how}\n")
    last = r"all-reduce over dp, 32 bytes, for gradients of w"
    found = re.search(
        rf"  on {HERE}, in step 3\n  its last collective: {last}; it ended in step 2, (\S+) s before\n", said
    )
    assert found is not None and 0.2 < float(found[1]) < LIMIT, said
    assert f"\n  ranks 0,2 wait for it: {last}\n" in said
    assert said.endswith(f"  log: {logs}/rank-1.log\n")


def test_an_end_names_the_checkpoint_to_go_on_from(tmp_path: Path) -> None:
    settings = dict(checkpoint='rt.Checkpoint(every=2, keep=2, to="kept")')
    said, _ = ended(tmp_path, AT_3.format(act="1 / 0"), 2, **settings)
    assert said.endswith(f"\n  --resume goes on from {tmp_path}/kept/step-2\n")
    said, _ = ended(tmp_path, "mesh.dp.index == 1 and 1 / 0", 2, checkpoint='rt.Checkpoint(every=2, keep=2, to="none")')
    assert said.endswith(f"\n  there is no checkpoint in {tmp_path}/none yet\n")


@pytest.mark.parametrize("act", ["os.kill(os.getpid(), 9)", "1 / 0"])
def test_where_nothing_watches_one_rank_says_it_for_all(tmp_path: Path, act: str) -> None:
    """As under torchrun: of a rank that is killed another one of its host says what its record tells."""
    path = write(tmp_path, line=AT_3.format(act=act), ranks=3, steps=1000)
    ranks = apart(3, str(path), "--device", "cpu", folder=tmp_path)
    said = "".join(rank.stderr for rank in ranks)
    assert [rank.returncode for rank in ranks] == [3, -9 if "kill" in act else 3, 3]
    assert said.count("error[") == 1, said
    assert re.match(r"error\[SH501\]: rank 1 (was killed by SIGKILL|ended without a word|failed: ZeroDivision)", said)
    last = "all-reduce over dp, 32 bytes, for gradients of w"
    assert f"\n  on {HERE}, in step 3\n  its last collective: {last}; it ended in step 2, " in said
    assert f"\n  ranks 0,2 wait for it: {last}\n" in said
    assert "ProcessGroup" not in said and "peer" not in said


@pytest.mark.parametrize("alone", [False, True], ids=["forked", "apart"])
def test_a_rank_that_is_stopped_ends_the_run(tmp_path: Path, alone: bool) -> None:
    """It takes no other signal than SIGKILL. The limit counts from its last sign of progress."""
    path = write(tmp_path, line=AT_3.format(act="os.kill(os.getpid(), 19)"), ranks=3, steps=1000)
    if alone:
        ranks = apart(3, str(path), "--device", "cpu", "--stall-timeout", "2", folder=tmp_path)
        said, ended_by = "".join(rank.stderr for rank in ranks), [rank.returncode for rank in ranks]
        assert ended_by == [3, -9, 3]
    else:
        code, _, said = finish(start(path, "--stall-timeout", "2"))
        assert code == 3
    assert said.count("error[") == 1 and said.startswith("error[SH515]: rank 1 has made no progress for "), said
    last = "all-reduce over dp, 32 bytes, for gradients of w"
    assert ": its process is stopped (SIGSTOP)\n" in said
    found = re.search(rf"its last collective: {last}; it ended in step 2, (\S+) s before", said)
    assert found is not None and 2.0 <= float(found[1]) < LIMIT
    assert f"\n  ranks 0,2 wait for it: {last}\n" in said
    assert said.endswith("\n  the limit is 2 s: --stall-timeout SECONDS sets another one\n")


def test_a_run_goes_on_by_itself_until_it_fails_twice_alike(tmp_path: Path) -> None:
    """Two kills at different steps are gone on from; the mistake at step 9 is made again, and is not tried a third
    time. The figures are those of a run that nothing happened to."""
    once = (
        "(lambda at: rt.random.KeyParts.step == at and not os.path.exists(f'{at}')"
        " and (open(f'{at}', 'w'), time.sleep(0.5), os.kill(os.getpid(), 9)))"
    )
    kept = 'rt.Checkpoint(every=2, keep=2, to="kept")'
    late = "[rt.random.KeyParts.step == 9 and (time.sleep(0.5), 1 / 0)]"
    line = f"mesh.dp.index == 1 and [{once}(at) for at in (3, 6)] + {late}"
    process = start(write(tmp_path, 2, line, steps=10, checkpoint=kept), "--max-restarts", "5", "--metrics", "m.jsonl")
    code, _, said = finish(process)
    assert code == 3
    words = re.findall(r"error\[.*|the run is.*|.*--resume goes on from.*|.*no checkpoint.*", said)
    assert words == [
        "error[SH501]: rank 1 was killed by SIGKILL", f"  --resume goes on from {tmp_path}/kept/step-2",
        "the run is started again (1 of 5)",
        "error[SH501]: rank 1 was killed by SIGKILL", f"  --resume goes on from {tmp_path}/kept/step-4",
        "the run is started again (2 of 5)",
        "error[SH501]: rank 1 failed: ZeroDivisionError: division by zero",
        f"  --resume goes on from {tmp_path}/kept/step-8", "the run is started again (3 of 5)",
        "error[SH501]: rank 1 failed: ZeroDivisionError: division by zero",
        f"  --resume goes on from {tmp_path}/kept/step-8",
        "the run is not started again: the start before it failed at step 9 in the same way",
    ]  # fmt: skip
    log = (tmp_path / "logs" / "rank-1.log").read_text()
    assert log.count("ZeroDivisionError: division by zero") == 2 and "restart 3\n" in log
    found = [json.loads(text) for text in (tmp_path / "m.jsonl").read_text().splitlines()]
    path = write(tmp_path, 2, "None", steps=8)
    assert finish(start(path, "--metrics", "whole.jsonl"))[0] == 0
    whole = [json.loads(text) for text in (tmp_path / "whole.jsonl").read_text().splitlines()]
    assert [(each["step"], each["loss"]) for each in found[:8]] == [(each["step"], each["loss"]) for each in whole]


def test_a_mistake_that_no_step_comes_to_is_not_tried_again(tmp_path: Path) -> None:
    kept = 'rt.Checkpoint(every=2, keep=2, to="kept")'
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "step-4").write_text("mine")
    code, _, said = finish(start(write(tmp_path, 2, checkpoint=kept), "--max-restarts", "5"))
    assert code == 3 and said.startswith("error[SH512]: ")
    assert said.endswith("the run is not started again: it failed before its first step\n")
    code, _, said = finish(start(write(tmp_path, 2), "--max-restarts", "5"))
    assert code == 3
    assert said.startswith("error[SH508]: the program sets no checkpoint, and --max-restarts goes on from one\nhelp: ")


def in_step_3(folder: Path, *ranks: Warm) -> Mapping[int, RankStatus]:
    """The records of both ranks of a run, once they have come so far."""

    def seen() -> Mapping[int, RankStatus]:
        found = records(folder / "logs", range(2), None)
        return found if len(found) == 2 and min(each.step for each in found.values()) >= 3 else {}

    return until(seen, lambda: all(rank.poll() is None for rank in ranks))


def beside_a_stopped_store(folder: Path, *words: str) -> Iterator[tuple[Warm, Warm]]:
    """Two ranks in training; rank 0 has the store, as where srun starts them, and is stopped. A rank asks the store
    often.
    """
    path = write(folder, ranks=2, line="time.sleep(0.02)", steps=100_000)
    often = "import shardlang.runtime.launch.alone as alone\nalone._ASK = 0.2\n"
    path.write_text(path.read_text().replace("\nmesh = ", f"\n{often}\nmesh = ", 1))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    given = {**os.environ, "PYTHONPATH": str(ROOT), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    given |= {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "main.py", "--device", "cpu", "--log-dir", "logs", *words]
    first, second = (
        Warm(command, cwd=folder, text=True, stderr=subprocess.PIPE, env={**given, "RANK": rank, "LOCAL_RANK": rank})
        for rank in "01"
    )
    try:
        seen = in_step_3(folder, first, second)
        os.kill(seen[0].pid, signal.SIGSTOP)
        time.sleep(0.5)  # by now it has asked, and has no answer
        yield first, second
    finally:
        for rank in (first, second):
            rank.kill()


def test_a_stopped_rank_that_has_the_store_is_told(tmp_path: Path) -> None:
    """The store answers nobody then: one rank of the host speaks all the same."""
    for _, second in beside_a_stopped_store(tmp_path, "--stall-timeout", "3"):
        said = second.communicate()[1]
        assert second.returncode == 3 and said.count("error[") == 1
        assert re.match(r"error\[SH515\]: rank 0 has made no progress for \d+ s: its process is stopped", said), said


def test_a_rank_beside_a_stopped_store_hears_that_it_is_to_end(tmp_path: Path) -> None:
    for _, second in beside_a_stopped_store(tmp_path):
        second.send_signal(signal.SIGTERM)
        assert second.communicate()[1] == "" and second.returncode == 128 + signal.SIGTERM


def task(folder: Path, rank: int, size: int, **given: object) -> Warm:
    """One task of a launcher that says its number alone."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1"}
    environment |= {"RANK": str(rank), "WORLD_SIZE": str(size), **{name: str(value) for name, value in given.items()}}
    command = [sys.executable, "main.py", "--device", "cpu"]
    return Warm(command, cwd=folder, text=True, stderr=subprocess.PIPE, env=environment)


def test_a_port_that_is_taken_and_two_tasks_of_one_number_are_told(tmp_path: Path) -> None:
    write(tmp_path, ranks=2, line="time.sleep(0.02)", steps=100_000)
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = taken.getsockname()[1]
        said = task(tmp_path, 0, 2, MASTER_PORT=port).communicate()[1]
        assert f"error[SH503]: port {port} of this host is taken: by another program, or by another task" in said
        assert "lost the store" not in said
    first, second = (task(tmp_path, rank, 2, MASTER_PORT=port) for rank in (0, 1))
    try:
        until(lambda: records(tmp_path / "logs", range(2), None), lambda: first.poll() is second.poll() is None)
        twice = [task(tmp_path, rank, 2, MASTER_PORT=port) for rank in (0, 1)]
        says = [each.communicate()[1] for each in twice]
        assert [each.returncode for each in twice] == [3, 3]
        assert "another task that has RANK 0 too" in says[0]
        assert f"another task of the run that has its store at 127.0.0.1:{port} is rank 1 already" in says[1]
        assert first.poll() is None and second.poll() is None  # they are not in each other's way
    finally:
        first.kill()
        second.kill()


def test_a_host_without_an_address_is_told(tmp_path: Path) -> None:
    path = write(tmp_path, ranks=2)
    at_once = "import shardlang.runtime.launch.meeting as meeting\nmeeting.PATIENCE = 0.0\n"
    path.write_text(path.read_text().replace("\nmesh = ", f"\n{at_once}\nmesh = ", 1))
    for rank in (0, 1):
        said = task(tmp_path, rank, 2, MASTER_ADDR="nowhere.invalid", MASTER_PORT=29471).communicate()[1]
        assert said.startswith("error[SH503]: MASTER_ADDR is `nowhere.invalid`, which has no address here: ")


HEARS = """
import os, signal, time
from shardlang.terminal import signals
"""


@pytest.mark.parametrize(
    ("act", "code"),
    [
        # A signal that comes as soon as the handler is there.
        ("set_ = signal.signal\n"
         "signal.signal = lambda *given: (set_(*given), os.kill(os.getpid(), 15), time.sleep(0.01))\n"
         "found = signals.heard()\nos._exit(9 if signals.has_come(found) else 1)", 9),
        ("found = signals.heard()\n[os.kill(os.getpid(), n) for n in (15, 15)]\n"
         "os._exit(9 if signals.has_come(found) and not signals.has_come(found) else 1)", 9),
        # One that nobody has asked for ends the process, as a later one does.
        ("signals.heard()\nos.kill(os.getpid(), 15)\nsignals.unheard()\ntime.sleep(1)", -15),
        ("signals.heard()\nsignals.unheard()\nos.kill(os.getpid(), 15)\ntime.sleep(1)", -15),
        ("found = signals.heard()\nos.kill(os.getpid(), 15)\nended = signals.has_come(found)\nsignals.unheard()\n"
         "os._exit(9 if ended else 1)", 9),
        # One that is ignored stays so.
        ("signal.signal(15, signal.SIG_IGN)\nfound = signals.heard()\nos.kill(os.getpid(), 15)\n"
         "came = signals.has_come(found)\nsignals.unheard()\nos.kill(os.getpid(), 15)\nos._exit(1 if came else 9)", 9),
    ],
    ids=["at once", "twice", "not asked for", "afterwards", "asked for", "ignored"],
)  # fmt: skip
def test_a_request_to_end_is_never_lost(act: str, code: int) -> None:
    ran = subprocess.run([sys.executable, "-c", HEARS + act], env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert ran.returncode == code


def test_a_log_without_room_is_told_beside_what_it_lacks(tmp_path: Path) -> None:
    """What a rank says goes to who started it too."""
    read, console = os.pipe()
    alone, kept = rank_0(tmp_path), [os.dup(1), os.dup(2)]
    full = os.open("/dev/full", os.O_WRONLY)
    alone.console = console
    try:
        os.dup2(full, 2)
        alone.tell("error[SH501]: rank 1 ended")
    finally:
        os.dup2(kept[1], 2)
    warning = b"warning: the log of rank 0 lacks what could not be written: No space left on device\n"
    assert os.read(read, 1000) == b"error[SH501]: rank 1 ended\n" + warning


def test_a_rank_alone_whose_log_lacks_lines_ends_well_and_says_so(tmp_path: Path) -> None:
    full = "os.dup2(os.open('/dev/full', os.O_WRONLY), 2) and os.dup2(2, 1) and print('lost')"
    path = write(tmp_path, ranks=2, line=f"mesh.dp.index == 1 and {full}")
    ranks = apart(2, str(path), "--device", "cpu", "--log-dir", "logs", folder=tmp_path)
    assert [rank.returncode for rank in ranks] == [0, 0] and ranks[0].stderr == ""
    assert ranks[1].stderr == "warning: the log of rank 1 lacks what could not be written: No space left on device\n"


def test_a_start_does_not_see_what_an_earlier_one_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """torchrun has one store for all starts: gloo would find the addresses of ranks that are gone, and this rank why
    the start before it failed."""
    kept = torch.distributed.HashStore()
    monkeypatch.setattr(torch.distributed, "rendezvous", lambda *_, **__: iter([(kept, 0, 1)]))
    monkeypatch.setattr(mesh.world, "store", None)
    given = {"RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    for name, value in {**given, "TORCHELASTIC_RESTART_COUNT": "0"}.items():
        monkeypatch.setenv(name, value)
    rendezvous().set("shardlang/cause", "killed")
    assert rendezvous().check(["shardlang/cause"])
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert not rendezvous().check(["shardlang/cause"])


def test_a_rank_that_waits_for_one_that_never_comes_ends_too(tmp_path: Path) -> None:
    """It is in its start, where it would wait for half an hour."""
    path = write(tmp_path, ranks=2)
    dies = "import shardlang.runtime.step.train as train\nbegun = train.TrainingRun._connect\n"
    dies += "train.TrainingRun._connect = lambda run: "
    dies += "os.kill(os.getpid(), 9) if os.environ['RANK'] == '1' else begun(run)\n"
    path.write_text(path.read_text().replace('if __name__ == "__main__":', dies + 'if __name__ == "__main__":'))
    ranks = apart(2, str(path), "--device", "cpu", folder=tmp_path)
    assert [rank.returncode for rank in ranks] == [3, -9]
    assert re.match(rf"error\[SH501\]: rank 1 .*\n  on {HERE}, before the first step\n", ranks[0].stderr)


@pytest.mark.parametrize("alone", [False, True], ids=["forked", "apart"])
def test_the_first_number_that_is_not_finite_is_named(tmp_path: Path, alone: bool) -> None:
    """The failed step is computed once more, from the checkpoint before it, and watched."""
    off = "(rt.random.KeyParts.step != 5 or mesh.dp.index != 1)"
    line = f"h = h.index_put((torch.tensor(1), torch.tensor(0)), h[1, 0] / (h[1, 0] * {off}))"
    path = write(tmp_path, 2, line, "ratio = a / b", steps=9, checkpoint='rt.Checkpoint(every=2, keep=2, to="kept")')
    if alone:
        ranks = apart(2, str(path), "--device", "cpu", folder=tmp_path)
        said = "".join(rank.stderr for rank in ranks)
    else:
        said = finish(start(path))[2]
    assert said.count("error[SH506]: the loss is ") == 1, said
    first = r"so it arose in the computation; first, on rank 1 `h` is (inf|-inf) at \[1, 0\] in step 5, "
    assert re.search(rf"at step 5 \(epoch 2\); .*{first}for small.shard:8  ratio = a / b\n", said), said


def test_a_gradient_that_is_not_finite_is_named(tmp_path: Path) -> None:
    """The loss of its step is finite."""
    line = "h = h + (h - h.detach()).abs().sqrt().sum() if rt.random.KeyParts.step == 3 else h"
    said = finish(start(write(tmp_path, 2, line, "root = sqrt(a)", steps=9)))[2]
    first = r"first, on rank \d the gradient of `h` is nan at \[0, 0\] in step 3, for small.shard:7"
    assert re.search(rf"the gradients are not finite at step 3 .*; {first}", said), said


def rank_0(folder: Path) -> Alone:
    """A rank that has started, with another one on its host."""
    program = rt.Program("", "", 2, rt.Mesh(rank=2), [], rt.Source("random", batch=1, fields=[]), [])
    alone = Alone(program, folder / "main.py", Started(0, 2, 0, 2), folder, None)
    alone.store, alone.signals = Answers(torch.distributed.HashStore()), os.eventfd(0)
    return alone


def test_a_rank_that_is_gone_before_it_is_watched_is_told(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Its record is there, and its process is not: that is no rank to wait for."""
    gone = FlightRecorder()
    gone.open(tmp_path / "rank-1.collectives", tmp_path, 1, 2)
    gone.words[PID] = 2**22 + 1
    alone = rank_0(tmp_path)
    watching = threading.Thread(target=alone._watch, daemon=True)
    watching.start()
    until(lambda: alone.store.has("shardlang/cause"))
    alone.over = True
    watching.join()
    assert "error[SH501]: rank 1 ended without a word\n" in capfd.readouterr().err


def test_a_rank_ends_only_after_it_has_said_what_it_saw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread speaks for all, and the step of the same rank fails meanwhile, as it hears no more of the other."""
    alone = rank_0(tmp_path)
    said, speaks = list[str](), threading.Event()

    def tell(text: str) -> None:
        speaks.set()
        time.sleep(0.2)
        said.append(text)

    monkeypatch.setattr(alone, "tell", tell)
    thread = threading.Thread(target=alone._say, args=("error[SH501]: rank 1 was killed by SIGKILL", 1))
    thread.start()
    speaks.wait()
    assert alone.said(RuntimeError("Connection closed by peer")) == ""
    assert [text.partition("\n")[0] for text in said] == ["error[SH501]: rank 1 was killed by SIGKILL"]
    thread.join()


def test_a_rank_that_is_to_end_says_first_what_it_saw(tmp_path: Path) -> None:
    """torchrun ends all ranks as soon as it has seen one die. Here it takes a while to say so."""
    alone = "__import__('shardlang.runtime.launch.alone', fromlist=['Alone']).Alone"
    says = "(open('says', 'w').close(), time.sleep(0.5)) and []"
    write(tmp_path, 2, f"setattr({alone}, '_around', lambda *_: {says})", steps=10_000)
    run = begun(2, "main.py", "--device", "cpu", "--log-dir", "logs", folder=tmp_path)
    in_step_3(tmp_path, *run)
    run[0].kill()
    until((tmp_path / "says").exists)
    run[1].terminate()
    said = "".join(rank.communicate()[1] for rank in run)
    assert re.findall(r"error\[SH501\]: rank 0 (?:was killed by SIGKILL|ended without a word)\n", said), said
    assert said.count("error[") == 1
    # It ends by the signal, or by its step, which hears no more of the other.
    assert run[0].returncode == -signal.SIGKILL and run[1].returncode in (3, 128 + signal.SIGTERM)


def test_a_second_ctrl_c_may_come_while_the_first_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[bytes] = []

    def say(text: bytes) -> None:
        told.append(text)
        if len(told) < 3:  # where it were told again, this would have no end
            signals._end(signal.SIGINT, None)

    monkeypatch.setattr(signals, "_say", say)
    monkeypatch.setattr(signals, "_come", [])
    with signals.save_heeded(True):
        signals.heed_save(True, lambda: None)
        with pytest.raises(signals.Interrupted):
            signals._end(signal.SIGINT, None)
    assert told == [signals._SAVES]
