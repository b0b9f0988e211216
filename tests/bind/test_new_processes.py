"""Where a fork could not compute gradients, what `launch` and `verify` start are new processes: they do the same."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import pytest
import torch

from shardlang.errors import RunError
from shardlang.interpret.trials.processes import child
from shardlang.runtime import device
from shardlang.runtime.launch import children
from shardlang.terminal import signals
from shardlang.torch import RankError, bind, launch
from tests import warm
from tests.bind.test_mistakes import TWO

# Once something is compiled, torch 2.14 has eight threads for autograd on a CPU, in a fork too, and all at once look
# for torch's pool of threads there.
COMPILED = """
import torch
from shardlang.interpret.trials.processes import child
torch.set_num_threads(1)
torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1))
def gradient(tell):
    x = torch.ones(1, requires_grad=True)
    (x * x).sum().backward()
    tell(x.grad.item())
for _ in range(40):
    assert child(gradient, 60.0) == ([2.0], 0)
"""


@pytest.fixture(autouse=True)
def threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thinks that autograd keeps threads."""
    monkeypatch.setattr(children, "threaded", lambda: "computed gradients")


def test_ranks_compute_what_forked_ones_do(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = 2

    def train() -> tuple[list[float], int]:
        net = bind(TWO)
        optimizer = net.optimizer(torch.optim.SGD, lr=0.1)
        losses = []
        for batch, _ in zip(net.batches(epoch=1), range(steps), strict=False):
            losses.append(float(net.step(batch)["loss"]))
            optimizer.step()
            net.stepped()
        return losses, os.getppid()

    new = launch(train, ranks=2)
    assert len(new[0][0]) == steps and new == [(new[0][0], os.getpid())] * 2
    monkeypatch.undo()
    if not children.threaded():
        assert launch(train, ranks=2) == new


def test_a_rank_that_fails_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    def fails(word: str) -> None:
        print(word)
        raise ValueError(word)

    with pytest.raises(RankError, match="ValueError: so") as error:
        launch(fails, "so", ranks=1)
    assert "in fails" in error.value.traceback and "so" in capfd.readouterr().out
    with pytest.raises(RankError, match="exit code 5"):
        launch(os._exit, 5, ranks=1)


def test_what_cannot_be_sent_is_refused() -> None:
    lock = threading.Lock()
    with pytest.raises(RunError) as error:
        launch(lambda: lock.locked(), ranks=2)
    assert error.value.code == "SH503" and "cannot be sent" in error.value.message and "torchrun" in error.value.help


def test_a_trial_tells_and_ends(tmp_path: Path) -> None:
    def tried(tell: object) -> None:
        x = torch.ones(2, requires_grad=True)
        (x * x).sum().backward()
        tell(x.grad.tolist())  # type: ignore[operator]

    assert child(tried, 60.0) == ([[2.0, 2.0]], 0)


def test_a_fork_of_what_has_computed_with_several_threads_does_so_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "threaded", lambda: "")
    before = torch.get_num_threads()

    def summed() -> float:
        torch.set_num_threads(2)
        x = torch.ones(1000, 1000, requires_grad=True)
        torch.exp(x).sum().backward()
        assert x.grad is not None
        return float(x.grad.sum())

    try:
        here = summed()
        assert child(lambda tell: tell(summed()), 60.0) == ([here], 0)
    finally:
        torch.set_num_threads(before)


@pytest.mark.timeout(60)
def test_a_process_that_was_forked_may_fork_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The threads of OpenMP are those of the first process: to end them in the second was to wait for ever."""
    monkeypatch.setattr(children, "threaded", lambda: "")
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    assert float(torch.exp(torch.zeros(1000, 1000)).sum()) == 1e6
    torch.set_num_threads(before)
    assert not children.forked() and children.threads(1) == len(os.sched_getaffinity(0))
    here = os.getpid()
    if (pid := os.fork()) == 0:
        try:
            signals.die_with_parent(here)
            found = child(lambda tell: tell(torch.exp(torch.zeros(1000, 1000)).sum().item()), 20.0)
            os._exit(found != ([1e6], 0) or not children.forked() or children.threads(1) != 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_fork_of_what_has_compiled_computes_gradients() -> None:
    done = warm.run([sys.executable, "-c", COMPILED])
    assert done.returncode == 0, done.stderr


def test_threads_of_autograd_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    before = children.threaded()
    named, ended = threading.Event(), threading.Event()

    def waits() -> None:
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text("pt_autograd_0")
        named.set()
        ended.wait()

    thread = threading.Thread(target=waits)
    thread.start()
    named.wait()
    try:
        assert (before, children.threaded()) in (("", "computed gradients"), ("computed gradients",) * 2)
    finally:
        ended.set()
        thread.join()


def test_a_process_that_has_used_cuda_is_asked_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert device._in_child(os.getppid) == str(os.getpid())
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert children.threaded() == "used CUDA"
    assert device._in_child(os.getpid) == str(os.getpid())
