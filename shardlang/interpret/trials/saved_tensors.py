"""A declared operator -> whether its `keeps` names the operands and results that backward reads.

Autograd tells each tensor that it saves. An operand or a result that is saved as it is, at all
sizes, must be in `keeps`: else `plan` counts less memory than a rank needs. A tensor that a
function makes and saves has no name in a declaration; `keeps` may name one that stands for it, or
more."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from shardlang.interpret.trials.cases import Trial
from shardlang.interpret.trials.splits import evaluate, leaf, text
from shardlang.interpret.trials.whole_operator import Breach
from shardlang.ops.declared import RESULT


def require_keeps(trials: Sequence[Trial]) -> None:
    """Refused where `keeps` leaves out what backward reads in every trial."""
    declaration = trials[0].declaration
    if declaration.keeps is None:
        return
    always = set.intersection(*(_saved(trial) for trial in trials)) - set(declaration.keeps)
    if always:
        names = [name for name in (*(each for each, _ in declaration.operands), RESULT)]
        missing = [name for name in names if name in always]
        told = " and ".join("its result" if name == RESULT else f"`{name}`" for name in missing)
        whole = [name for name in names if name in always or name in declaration.keeps]
        raise Breach(f"its backward reads {told}, which `keeps` leaves out", f"`keeps {', '.join(whole)}`")


def _saved(trial: Trial) -> set[str]:
    """The names of the operands, and `result`, whose memory autograd keeps for backward."""
    case = trial.case()
    inputs = [leaf(x) for x in case.inputs]
    memories: set[int] = set()

    def saved(x: Tensor) -> Tensor:
        memories.add(x.untyped_storage().data_ptr())
        return x.detach()

    with torch.autograd.graph.saved_tensors_hooks(saved, lambda x: x):
        result = evaluate(text(case), inputs, case=case)
    named = {name: x for (name, _), x in zip(trial.declaration.operands, inputs, strict=True)}
    return {name for name, x in (*named.items(), (RESULT, result)) if x.untyped_storage().data_ptr() in memories}
