"""Values that autograd does not keep between forward and backward: parameters under ZeRO 3, and
what `recompute` drops.

Where autograd would save such a value, or a view of it, it saves instead who brings it back."""

from __future__ import annotations

import weakref
from typing import Any, Protocol

import torch
from torch import Tensor


class Owner(Protocol):
    """Brings a value back in backward."""

    def saved(self) -> None:
        """Called once for each `bring` that will follow."""

    def bring(self) -> Tensor:
        """The value, now."""


# Live values by the identity of their memory. An owner may hold much: it goes with its value.
_known: dict[int, tuple[weakref.ref[Tensor], Owner]] = {}


def note(value: Tensor, owner: Owner) -> None:
    """From now on autograd saves the owner in place of a value."""
    at = value.untyped_storage()._cdata

    def gone(reference: weakref.ref[Tensor]) -> None:
        if at in _known and _known[at][0] is reference:  # else the memory is another value's by now
            del _known[at]

    _known[at] = (weakref.ref(value, gone), owner)


def owner(tensor: Tensor) -> Owner | None:
    """The owner of the live value whose memory `tensor` views."""
    found = _known.get(tensor.untyped_storage()._cdata)
    return found[1] if found is not None and found[0]() is not None else None


def pack(tensor: Tensor) -> Any:
    """A tensor, or who brings it back, as autograd keeps it."""
    found = owner(tensor)
    if found is None:
        return tensor
    found.saved()
    return found, tensor.size(), tensor.stride(), tensor.storage_offset()


def unpack(packed: Any) -> Tensor:
    """The tensor that was packed."""
    if isinstance(packed, Tensor):
        return packed
    found, size, stride, offset = packed
    whole: Tensor = found.bring()
    return whole.as_strided(size, stride, offset)


def dropped_between() -> Any:
    """Context of a forward pass: what has an owner is not kept for backward."""
    return torch.autograd.graph.saved_tensors_hooks(pack, unpack)
