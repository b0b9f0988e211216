"""A step of a run's optimizers: on whole parameters, or on what each rank stores, clipped by the
global norm.

Kinds without a formula take a plain step of their learning rate: what is compared is what ranks do,
and an optimizer works on each element alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from shardlang.check.own import OwnDecl
from shardlang.extensions.loaded import OwnFunction
from shardlang.facts.optimizers import OPTIMIZERS, Rows
from shardlang.interpret.meaning.optimizers import RULES, Memory, looked_up, on_rows, rate
from shardlang.interpret.ranks.coordinates import others
from shardlang.interpret.ranks.stored import Storage, storage
from shardlang.plan.plan import Plan
from shardlang.runtime.state.own_optimizers import stepped
from shardlang.runtime.step.learning_rate import asked

_NONE: Mapping[int, Tensor] = {}


@dataclass
class Optimizers:
    """One run's optimizers: their state, per parameter and rank. total: steps of the whole run.
    skipped: those that updated nothing."""

    plan: Plan
    total: int = 1
    step: int = 0
    skipped: int = 0
    memory: dict[tuple[int, int], Memory] = field(default_factory=dict)

    def _own(self) -> dict[int, OwnDecl]:
        """Parameter -> the declaration of its optimizer, where that is the user's."""
        training = self.plan.program.training
        given = [(o.own, v) for o in (training.optimizers if training else ()) for v in o.params]
        return {value: own for own, value in given if own is not None}

    def settings(self) -> dict[int, tuple[str, Mapping[str, Any]]]:
        """Parameter -> kind and arguments of its optimizer; without `train` plain descent."""
        training = self.plan.program.training
        found: dict[int, tuple[str, Mapping[str, Any]]] = dict.fromkeys(self.plan.graph.params, ("sgd", {"lr": 0.1}))
        for optimizer in training.optimizers if training else ():
            known = optimizer.kind in RULES or optimizer.own is not None
            arguments = optimizer.arguments if known else {"lr": optimizer.arguments.get("lr", 0.1)}
            found.update(dict.fromkeys(optimizer.params, (optimizer.kind if known else "sgd", arguments)))
        return found

    def looked_up(self, ids_of: Callable[[int], Iterable[Tensor]]) -> dict[int, Tensor]:
        """For parameters whose optimizer changes only the rows of the batch: which those are."""
        kinds = self.settings()
        sparse = [v for v, p in self.plan.params.items() if p.sparse]
        return looked_up(self.plan.graph, [v for v in sparse if OPTIMIZERS[kinds[v][0]].rows is Rows.LEFT_OUT], ids_of)

    def whole(
        self, params: Mapping[int, Tensor], gradients: Mapping[int, Tensor], rows: Mapping[int, Tensor] = _NONE
    ) -> dict[int, Tensor]:
        """The parameters after a step on one device; none where it updates nothing. rows: as
        `looked_up` gives them."""
        norm = self.norm_of_wholes(params, gradients)
        if self._left_out(norm):
            return {}
        factor = self._factor(norm)
        mine = {v: [params[v]] for v in self.plan.graph.params if v in gradients}
        stepped = self._stepped(mine, gradients, factor, {v: [mask] for v, mask in rows.items()})
        return {v: xs[0] for v, xs in stepped.items()}

    def from_ranks(
        self, params: Mapping[int, Tensor], gradients: Mapping[int, Sequence[Tensor]], rows: Mapping[int, Tensor]
    ) -> dict[int, Tensor]:
        """As `whole`, from the gradients that ranks store: the expected result of an optimizer."""
        together = {v: storage(self.plan, v).assembled(parts) for v, parts in gradients.items()}
        return self.whole(params, together, rows)

    def stored(
        self,
        kept: Mapping[int, Sequence[Tensor]],
        gradients: Mapping[int, Sequence[Tensor]],
        rows: Mapping[int, Tensor] = _NONE,
    ) -> dict[int, list[Tensor]]:
        """The tensors that each rank stores after a step; none where it updates nothing."""
        norm = self.norm(gradients)
        if self._left_out(norm):
            return {}
        masks = {v: self._parts(v, mask) for v, mask in rows.items()}
        return self._stepped({v: kept[v] for v in gradients}, gradients, self._factor(norm), masks)

    def leaves_out(self, norm: float) -> bool:
        """Whether a step of gradients with this norm updates nothing."""
        training = self.plan.program.training
        return training is not None and training.not_finite == "skip" and not math.isfinite(norm)

    def _left_out(self, norm: float) -> bool:
        """The same, of the step that is made now, which counts for the learning rate alone."""
        left = self.leaves_out(norm)
        self.step, self.skipped = self.step + left, self.skipped + left
        return left

    @staticmethod
    def norm_of_wholes(params: Mapping[int, Tensor], gradients: Mapping[int, Tensor]) -> float:
        """That of whole gradients."""
        return math.sqrt(sum(float(g.double().square().sum()) for v, g in gradients.items() if v in params))

    def norm(self, gradients: Mapping[int, Sequence[Tensor]]) -> float:
        """That of the gradients that ranks store. It sums squares over what cuts a parameter, and
        nothing else."""
        return math.sqrt(sum(_norm_square(storage(self.plan, v), parts) for v, parts in gradients.items()))

    def _parts(self, value: int, mask: Tensor) -> list[Tensor]:
        """The mask for the rows of a table that each rank stores."""
        at = storage(self.plan, value)
        return [mask.narrow(0, *at.block(rank)[0]) for rank in at.ranks]

    def _factor(self, norm: float) -> float:
        training = self.plan.program.training
        limit = training.clip if training else None
        return 1.0 if limit is None else min(1.0, limit / (norm + 1e-6))

    def _stepped(self, params: Mapping[int, Sequence[Tensor]], gradients: Mapping[int, Any], factor: float,
                 masks: Mapping[int, Sequence[Tensor]]) -> dict[int, list[Tensor]]:  # fmt: skip
        self.step += 1
        settings, found, own = self.settings(), {}, self._own()
        for value, xs in params.items():
            if value in own:
                arguments = self._scheduled(settings[value][1])
                found[value] = self._by_own(own[value], value, xs, gradients[value], factor, arguments)
                continue
            kind, arguments = settings[value]
            arguments = self._scheduled(arguments)
            given = gradients[value] if not isinstance(gradients[value], Tensor) else [gradients[value]]
            rules = [on_rows(RULES[kind], mask) for mask in masks[value]] if value in masks else [RULES[kind]] * len(xs)
            found[value] = [
                rule(x, g * factor, self.memory.setdefault((value, rank), {}), self.step - self.skipped, arguments)
                for rank, (rule, x, g) in enumerate(zip(rules, xs, given, strict=True))
            ]
        return found

    def _by_own(
        self, decl: OwnDecl, value: int, xs: Sequence[Tensor], gradients: Any, factor: float,
        arguments: Mapping[str, Any],
    ) -> list[Tensor]:  # fmt: skip
        """A step by a function of the user's, on the whole, of which each rank keeps what it
        stores. `shardc verify` of its file has tried whether it needs so much."""
        kept, whole = storage(self.plan, value), isinstance(gradients, Tensor)
        x, gradient = (xs[0], gradients) if whole else (kept.assembled(xs), kept.assembled(gradients))
        memory = self.memory.setdefault((value, -1), {name: torch.zeros_like(x) for name in decl.state})
        function = OwnFunction(decl.path, decl.source, decl.function).found(Path())
        made, after = stepped(
            function, Path(decl.path), x, gradient * factor, memory, self.step - self.skipped, arguments
        )
        self.memory[value, -1] = after
        return [made] if whole else kept.store(made)

    def _scheduled(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """The arguments with the learning rate of this step."""
        training = self.plan.program.training
        if training is None or training.lr_schedule is None or "lr" not in arguments:
            return arguments
        kind, given = training.lr_schedule
        if training.own_schedule is not None:
            own = training.own_schedule
            function = OwnFunction(own.path, own.source, own.function).found(Path())
            found = asked(function, Path(own.path), self.step, self.total, arguments["lr"], given)
            return {**arguments, "lr": found}
        return {**arguments, "lr": rate(arguments["lr"], kind, given, self.step, self.total)}


def _norm_square(kept: Storage, parts: Sequence[Tensor]) -> float:
    """The squared norm of a parameter's gradient, each element once: from its first ranks."""
    cut = {*kept.plan.stored.split_axes(), *(kept.plan.zero_axes if kept.plan.zero else ())}
    rest = others(kept.mesh, tuple(cut))
    first = (rank for rank in kept.ranks if kept.mesh.index(rank, rest) == 0)
    return sum(float(parts[rank].double().square().sum()) for rank in first)
