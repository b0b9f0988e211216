"""Branches of a module's Python code on sizes of its inputs, by a trace with sizes that have no
numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch._dynamo.source import ConstantSource
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from shardlang.importing.steps.trace import quiet

Place = tuple[str, int]


def buffers(module: nn.Module) -> list[tuple[nn.Module, str, Tensor, Tensor]]:
    """The buffers of a module: whose, the name, the tensor, its numbers."""
    return [(each, name, tensor, tensor.clone()) for each in module.modules()
            for name, tensor in each.named_buffers(recurse=False)]  # fmt: skip


def restore(found: list[tuple[nn.Module, str, Tensor, Tensor]]) -> None:
    """Gives buffers back what they were; a module may also have replaced them."""
    for owner, name, tensor, numbers in found:
        tensor.copy_(numbers)
        setattr(owner, name, tensor)


def largest_sizes(module: nn.Module, inputs: Mapping[str, Tensor], places: Sequence[Place]) -> dict[Place, int]:
    """Up to which size of each dim the module takes the way of the example; those without a bound
    are left out, and all if the module cannot be run so."""
    env = ShapeEnv()
    mode = FakeTensorMode(shape_env=env, allow_non_fake_inputs=True)
    given = {}
    for name, tensor in inputs.items():
        sizes = [DimDynamic.DYNAMIC if (name, at) in places else DimDynamic.STATIC for at in range(tensor.dim())]
        context = StatelessSymbolicContext(dynamic_sizes=sizes)
        given[name] = mode.from_tensor(tensor, symbolic_context=context, source=ConstantSource(name))
    before = buffers(module)
    try:
        with quiet(), mode, torch.no_grad():
            module(**given)
    except Exception:
        return {}
    finally:
        restore(before)
    found = {}
    for name, at in places:
        symbol = getattr(getattr(given[name].shape[at], "node", None), "expr", None)
        upper = env.var_to_range[symbol].upper if symbol in env.var_to_range else None
        if upper is not None and upper.is_Integer and int(upper) < 2**31:
            found[name, at] = int(upper)
    return found
