"""A compiled program as a torch module, stepped by a loop of the user's own:

    figures = net.step(net.place(batch))
    net.clip(1.0)
    optimizer.step()
    net.stepped()

It computes by what emitted programs compute by (runtime/step/stepper.py), so its losses are theirs,
bit for bit. Only the optimizer is another's."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from shardlang.facts.figures import is_told
from shardlang.hints.nearest import offer
from shardlang.runtime import compiled
from shardlang.runtime.comm.mesh import world
from shardlang.runtime.data.loader import Loader, load
from shardlang.runtime.program import RunProgram, numbers_of
from shardlang.runtime.state.checkpoints import SavedRun
from shardlang.runtime.state.weights import whole_of
from shardlang.runtime.step.microbatches import given_ahead
from shardlang.runtime.step.stepper import Stepper
from shardlang.runtime.step.totals import Pending
from shardlang.torch import optimizers
from shardlang.torch.place import Batch, BatchPlacement, Field, apart
from shardlang.torch.ranks import agree


class Figures(Mapping[str, float]):
    """The loss and the metrics of a step, the same on all ranks. The first look at one waits until
    the ranks have summed them up. updates: False where gradients are not finite and such steps are
    left out (`not_finite = skip`, or f16); then there are none, so that an optimizer changes
    nothing."""

    def __init__(self, pending: Pending, updates: bool) -> None:
        self._pending, self.updates = pending, updates

    @cached_property
    def _found(self) -> dict[str, float]:
        return {name: value for name, value in self._pending.wait().items() if is_told(name)}

    def __getitem__(self, name: str) -> float:
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._pending.sum.totals.names if is_told(name))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return f"Figures({', '.join(f'{name}={value:.6g}' for name, value in self.items())})"


class _Loss(torch.autograd.Function):
    """This rank's part of the loss, whose backward is that of a step."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, loss: Tensor, back: Callable[[Tensor], None]) -> Tensor:
        ctx.back = back
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, None]:
        ctx.back(gradient)
        return None, None, None


class ShardModule(nn.Module):
    """Made by `bind`. rank, ranks: of this process. fields: what a batch has. done: the steps so
    far, on which random numbers depend."""

    def __init__(self, program: RunProgram, stepper: Stepper, saved: SavedRun | None) -> None:
        super().__init__()
        self._program, self._stepper, self._saved = program, stepper, saved
        self.rank, self.ranks = world.rank, world.size
        self.done = saved.step if saved is not None else 0
        self._cut = BatchPlacement(program, program.data)
        self.fields: tuple[Field, ...] = self._cut.all
        model = stepper.model
        self._trained = {t.path: nn.Parameter(model.trained[t.path].detach()) for t in model.parameters if not t.frozen}
        self._due, self._calls, self._synced = False, 0, os.environ.get("SHARD_SYNC") == "1"
        self._tried: set[object] = set()

    def extra_repr(self) -> str:
        strategy = f", strategy {self._program.strategy}" if self._program.strategy else ""
        return f"{self._program.name}{strategy}, rank {self.rank} of {self.ranks}"

    def _agree(self, call: str) -> None:
        """Before a call in which ranks talk to each other."""
        self._calls += 1
        if self._synced:
            agree(call, self._calls)

    @contextlib.contextmanager
    def _computing(self, gradients: bool = True) -> Iterator[None]:
        self._stepper.step = self.done
        self._stepper.enter()
        with numbers_of(self._program), torch.set_grad_enabled(gradients), compiled.told():
            yield

    # The user's loop

    def place(self, batch: Mapping[str, Any], *, whole: bool = True) -> Batch:
        """This rank's part of a batch, on its device. whole: `batch` has all of it, as each rank
        does; else only this rank's part, the parts of its microbatches one after the other.
        ValueError or TypeError where names, shapes or types are others."""
        return Batch(self, self._cut.placed(batch, whole))

    def batches(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        """The program's own batches of an epoch (from 1), placed, in the order in which `shardc
        run` takes them. first: the number, from 0, of the first."""
        if epoch < 1:
            raise ValueError(f"epochs are numbered from 1, and this is {epoch}")
        return (Batch(self, batch) for batch in self._loader.epoch(epoch, first))

    def notes(self) -> list[str]:
        """The lines that `shardc run` prints of the program's own data: what was read, and what of
        it is cut or unknown."""
        loaders = [self._loader, *([self._test] if self._program.eval is not None else [])]
        return [note for loader in loaders for note in loader.dataset.notes]

    @cached_property
    def _loader(self) -> Loader:
        return Loader(self._program, self._program.data, load(self._program.data, self._program.base))

    def step(self, batch: Batch) -> Figures:
        """Forward and backward of all microbatches and stages; gradients are summed over the ranks
        when it returns. All ranks call it."""
        if not isinstance(batch, Batch) or batch.of is not self:
            other = "what another one gives" if isinstance(batch, Batch) else type(batch).__name__
            raise TypeError(f"a step takes what `place` of this module gives, not {other}")
        self._require_stepped("step")
        self._agree("step")
        with self._computing():
            self._stepper.model.updated()
            self._stepper.begin()
            pending = self._stepper.passes.step(batch.microbatches)
            return Figures(pending, self._ends())

    def forward(self, **fields: Tensor) -> Tensor:
        """This rank's part of the loss, from its parts of the fields: `net(**net.place(batch))`.
        The loss is the sum over the ranks. Its `backward()` is that of a step; all ranks call it.
        RunError (SH620) with stages or microbatches."""
        program = self._program
        if program.forward is None or program.microbatches > 1:
            raise apart("stages" if program.forward is None else "microbatches")
        given = self._cut.placed(fields, whole=False)
        self._agree("forward")
        with self._computing(torch.is_grad_enabled()):
            self._stepper.model.updated()
            self._stepper.begin()
            ahead = given_ahead(program.before_microbatch, program.before_step, given)
            with self._stepper.model.forward_context():
                loss, *_ = program.forward(self._stepper.model.p, *given[0].values(), **ahead)
        if not loss.requires_grad:
            return loss

        def back(gradient: Tensor) -> None:
            self._require_stepped("backward")
            self._agree("backward")
            with self._computing():
                self._stepper.begin()
                self._stepper.model.backward(loss * gradient)
                self._ends()

        return _Loss.apply(torch.zeros((), requires_grad=True), loss.detach(), back)

    def _require_stepped(self, call: str) -> None:
        if self._due:
            raise RuntimeError(
                f"`{call}` is called again after step {self.done + 1}, and `stepped` was not: the loop is "
                "net.step(..), optimizer.step(), net.stepped()"
            )

    def _require_step(self, call: str) -> None:
        if not self._due:
            last = f"step {self.done}" if self.done else "the beginning"
            raise RuntimeError(f"`{call}` is called, and no step has been since {last}")

    @torch.no_grad()
    def _ends(self) -> bool:
        """Hands the gradients to the optimizer; whether there are any."""
        self._due = True
        fits = self._stepper.model.gradients.fit()
        trained = self._stepper.model.trained
        for path, handle in self._trained.items():
            if not fits:
                handle.grad = None
            else:
                gradient = trained[path].grad
                handle.grad = torch.zeros_like(handle) if gradient is None else gradient
        return fits

    def clip(self, norm: float) -> Tensor:
        """Scales the gradients so that the norm of all of the model's, each once, is at most
        `norm`; the norm before. All ranks call it."""
        if isinstance(norm, bool) or not isinstance(norm, int | float) or not norm > 0:
            raise ValueError(f"the norm is a number above 0, not {norm!r}")
        self._require_step("clip")
        self._agree("clip")
        for path, handle in self._trained.items():
            self._stepper.model.trained[path].grad = handle.grad
        gradients = self._stepper.model.gradients
        return gradients.clip(norm, gradients.measure()())

    def stepped(self) -> None:
        """After the optimizer's step: clears the gradients, counts the step. All ranks call it."""
        self._require_step("stepped")
        self._agree("stepped")
        self._stepper.model.clear()
        for handle in self._trained.values():
            handle.grad = None
        self.done, self._due = self.done + 1, False

    def evaluate(self, batches: Iterable[Mapping[str, Any]] | None = None) -> dict[str, float]:
        """The figures of `eval` over a whole set. batches: whole ones, of which the last may be
        short; by default the program's own. All ranks call it with the same."""
        if self._program.eval is None or self._program.finish is None:
            raise ValueError("the program has no `eval` in its `train`")
        self._agree("evaluate")
        with self._computing(False):
            self._stepper.model.updated()
            given = self._test.once() if batches is None else map(self._rowed, batches)
            found: dict[str, float] = self._stepper.evaluation(given)
            return found

    @cached_property
    def _test(self) -> Loader:
        assert self._program.eval is not None
        source, base = self._program.eval, self._program.base
        return Loader(self._program, source, load(source, base, self._loader.dataset))

    def _rowed(self, batch: Mapping[str, Any]) -> tuple[Any, int]:
        """A batch of an evaluation, and how many rows it has."""
        assert self._program.eval is not None
        cut = BatchPlacement(self._program, self._program.eval)
        first = next((value for name, value in batch.items() if name in {f.name for f in cut.all}), ())
        rows = min(len(first), cut.source.batch)
        return cut.placed(batch, True, rows), rows

    # What it holds

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        """The parameters that this rank updates, by path: its blocks, and under ZeRO its rows of
        them."""
        yield from ((f"{prefix}.{path}".removeprefix("."), held) for path, held in self._trained.items())

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """This rank's blocks of the program's states, by path."""
        states = self._stepper.model.states
        yield from ((f"{prefix}.{path}".removeprefix("."), held) for path, held in states.items())

    def optimizer(self, cls: Any, *, at: Iterable[str] | None = None, **settings: Any) -> Any:
        """A torch optimizer of what this rank updates, or of the part that selectors name
        (`at=["**.bias"]`). After `resume` it goes on from the checkpoint.

        NotElementwise where it does not treat each element alone; RunError (SH508) where the
        checkpoint is of another one."""
        key = cls, repr(sorted(settings.items(), key=lambda pair: pair[0]))
        if key not in self._tried:
            optimizers.require_elementwise(cls, settings)
            self._tried.add(key)
        return optimizers.made(self._stepper.model, self._trained, self._saved, cls, at, settings)

    def value(self, path: str, *, whole: bool = True) -> Tensor:
        """A parameter or state, without gradient: whole, or this rank's block (ValueError where it
        has none). All ranks call it."""
        model = self._stepper.model
        found = next((t for t in self._program.tensors if t.path == path), None)
        if found is None:
            known = [t.path for t in self._program.tensors]
            raise ValueError(f"there is no parameter or state `{path}`; {offer(path, known, ', '.join(known[:8]))}")
        self._agree(f"value of {path}")
        with torch.no_grad():
            held = self._program.holds(found)
            local = model.block(path)().detach().clone() if held else None
            if whole:
                return whole_of(self._program, found, local)
        if local is None:
            raise ValueError(f"rank {self.rank} has no part of `{path}`, which is another stage's")
        return local

    def state_dict(self, *args: Any, prefix: str = "", **further: Any) -> dict[str, Any]:
        """This rank's part of each parameter and state, by path: under ZeRO its rows. A program
        that is bound alike takes it."""
        model = self._stepper.model
        mine = {t.path: model.trained[t.path].detach() for t in model.parameters}
        return {f"{prefix}{path}": held for path, held in {**mine, **model.states}.items()}

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Takes over what `state_dict` of the same rank gave. RuntimeError where names or shapes
        differ. All ranks call it."""
        mine = self.state_dict()
        lacking, further = sorted(mine.keys() - state_dict.keys()), sorted(state_dict.keys() - mine.keys())
        wrong = [
            f"`{path}` is {list(state_dict[path].shape)} there and {list(held.shape)} here"
            for path, held in mine.items() if path in state_dict and state_dict[path].shape != held.shape
        ]  # fmt: skip
        if strict and lacking:
            wrong.append(f"`{lacking[0]}` is not there" + (f", nor {len(lacking) - 1} more" if lacking[1:] else ""))
        if strict and further:
            wrong.append(f"`{further[0]}` is not of this program")
        if wrong or assign:
            raise RuntimeError(f"the state does not fit: {'; '.join(wrong) or 'it is copied, never assigned'}")
        self._agree("load_state_dict")
        with torch.no_grad():
            for path in mine.keys() & state_dict.keys():
                mine[path].copy_(state_dict[path])
            self._stepper.model.refresh(self._stepper.model.leaves)
        return nn.modules.module._IncompatibleKeys(lacking, further)

    # What other modules do, and this one does not

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        raise TypeError("a bound program stays on its device and in its types: bind(.., device=..), and `precision`")

    def train(self, mode: bool = True) -> ShardModule:
        """A step trains, `evaluate` evaluates, so there is nothing to switch: TypeError for
        False."""
        if not mode:
            raise TypeError("a step always trains: net.evaluate(batches) computes what `eval` says, without dropout")
        return self

    def requires_grad_(self, requires_grad: bool = True) -> ShardModule:
        """The program says what is trained: TypeError."""
        raise TypeError("`freeze at SELECTOR` in the program says what is not trained")
