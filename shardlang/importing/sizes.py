"""Example tensors of other sizes, at which a module computes as well."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

# The largest number with which code or a mask compares sizes that are tried beyond it.
FURTHEST = 4096


@dataclass(frozen=True)
class FreeDim:
    """Dims of inputs that are one: where each stands, and from which size to which one they may
    be."""

    places: Sequence[tuple[str, int]]
    most: int
    least: int = 2

    def size(self, inputs: Mapping[str, Tensor]) -> int:
        name, at = self.places[0]
        return int(inputs[name].shape[at])

    @property
    def is_batch(self) -> bool:
        return any(not at for _, at in self.places)


def other_sizes(
    inputs: Mapping[str, Tensor], dims: Sequence[FreeDim], module: nn.Module, beyond: int = 0
) -> dict[str, Tensor] | None:  # fmt: skip
    """The inputs with other sizes of those dims that the module takes at other sizes; None where it
    takes none. New sizes differ from all that the module has, and are larger than `beyond`, but for
    a batch's, if the module takes that."""
    taken = {size for each in [*inputs.values(), *module.parameters()] for size in each.shape}
    taken |= {value for value in vars(getattr(module, "config", object)).values() if isinstance(value, int)}
    found = dict(inputs)
    for dim in dims:
        now = max(dim.size(inputs), dim.least - 1)
        for before in dict.fromkeys((now if dim.is_batch else max(now, beyond), now, dim.least - 1)):
            size = next(each for each in itertools.count(before + 1) if each not in taken)
            trial = _resized(found, dim, size)
            if size <= dim.most and _takes(module, trial):
                found = trial
                taken.add(size)
                break
    return found if any(found[name] is not each for name, each in inputs.items()) else None


def _resized(inputs: Mapping[str, Tensor], dim: FreeDim, size: int) -> dict[str, Tensor]:
    """The inputs with a dim of another size: their elements again."""
    found = dict(inputs)
    for name, at in dim.places:
        found[name] = found[name].index_select(at, torch.arange(size) % found[name].shape[at])
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
