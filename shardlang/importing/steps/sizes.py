"""Example tensors of other sizes, so that a second trace shows what depends on sizes; and up to
which size a module's Python code takes one branch, by a trace with sizes that have no numbers."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch._dynamo.source import ConstantSource
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from shardlang.importing.steps.trace import quiet

Place = tuple[str, int]
# The largest number with which code or a mask compares sizes that a second trace is made beyond.
FURTHEST = 4096


def other_sizes(
    inputs: Mapping[str, Tensor],
    free: Sequence[Sequence[Place]],
    module: nn.Module,
    beyond: int = 0,
    near: bool = False,
    distinct: bool = False,
    besides: Mapping[str, Tensor] | None = None,
    double: bool = False,
) -> dict[str, Tensor] | None:
    """The inputs with other sizes of those dims that the module takes at other sizes; None where it
    takes none. `free`: dims that may change, and where each stands. New sizes differ from all that
    the module has; those that the module's code or a mask compares with numbers up to `beyond` are
    larger than these, if the module takes that, but not where sizes are to be `near`. distinct: no
    two dims grow by the same. besides: other inputs, whose sizes are not taken either. double: new
    sizes are at least twice as large, or half as large again, where the module takes that."""
    taken = {size for each in [*inputs.values(), *(besides or {}).values(), *module.parameters()]
             for size in each.shape}  # fmt: skip
    taken |= {value for value in vars(getattr(module, "config", object)).values() if isinstance(value, int)}
    wanted: dict[Place, int] = {}
    longest = 0 if near else max(windows(getattr(module, "config", None)), beyond)
    bounds = {} if near else largest_sizes(module, inputs, [place for places in free for place in places])
    grown: set[int] = set()
    for places in free:
        now = inputs[places[0][0]].shape[places[0][1]]
        # A window shows only beyond its size.
        bound = max((bounds[place] for place in places if bounds.get(place, FURTHEST) < FURTHEST), default=0)
        far = now if places[0][1] == 0 else max(now, longest)
        wide = (2 * now, now + now // 2) if double else ()
        for least in dict.fromkeys((*wide, max(far, bound), far, max(now, bound), now)):
            size = next(each for each in itertools.count(least + 1)
                        if each not in taken and not (distinct and each - now in grown))  # fmt: skip
            trial = {place: size for place in places}
            if _takes(module, _resized(inputs, wanted | trial)):
                wanted |= trial
                taken.add(size)
                grown.add(size - now)
                break
    return _resized(inputs, wanted) if wanted else None


def windows(config: Any) -> int:
    """The largest window or chunk of positions that a configuration names, in its parts too."""
    found = [0]
    for name, value in vars(config).items() if config is not None else ():
        if isinstance(value, int) and ("window" in name or "chunk" in name):
            found.append(value)
        elif hasattr(value, "to_dict"):
            found.append(windows(value))
    return max(found)


def _resized(inputs: Mapping[str, Tensor], sizes: Mapping[Place, int]) -> dict[str, Tensor]:
    """The inputs with some dims longer: their elements again."""
    found = dict(inputs)
    for (name, at), size in sizes.items():
        index = torch.arange(size) % found[name].shape[at]
        found[name] = found[name].index_select(at, index)
    return found


def _takes(module: nn.Module, inputs: Mapping[str, Tensor]) -> bool:
    """Whether the module computes at all with these."""
    state = buffers(module)
    try:
        with torch.no_grad():
            module(**inputs)
    except Exception:
        return False
    finally:
        restore(state)
    return True


def buffers(module: nn.Module) -> list[tuple[nn.Module, str, Tensor, Tensor]]:
    """The buffers of a module: whose, the name, the tensor, its numbers."""
    return [(each, name, tensor, tensor.clone()) for each in module.modules()
            for name, tensor in each.named_buffers(recurse=False)]  # fmt: skip


def restore(found: list[tuple[nn.Module, str, Tensor, Tensor]]) -> None:
    """Gives buffers back what they were; a module may also have replaced them."""
    for owner, name, tensor, numbers in found:
        tensor.copy_(numbers)
        setattr(owner, name, tensor)


def symbolic(mode: FakeTensorMode, tensor: Tensor, name: str, free: Sequence[bool]) -> Tensor:
    """A tensor without numbers, whose free dims have symbols as sizes."""
    dims = [DimDynamic.DYNAMIC if each else DimDynamic.STATIC for each in free]
    context = StatelessSymbolicContext(dynamic_sizes=dims)
    return mode.from_tensor(tensor, symbolic_context=context, source=ConstantSource(name))


def largest_sizes(module: nn.Module, inputs: Mapping[str, Tensor], places: Sequence[Place]) -> dict[Place, int]:
    """Up to which size of each dim the module takes the way of the example; those without a bound
    are left out, and all if the module cannot be run so."""
    env = ShapeEnv()
    mode = FakeTensorMode(shape_env=env, allow_non_fake_inputs=True)
    mode.cache_enabled = False  # entries with symbols cost more than they save
    given = {name: symbolic(mode, tensor, name, [(name, at) in places for at in range(tensor.dim())])
             for name, tensor in inputs.items()}  # fmt: skip
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
