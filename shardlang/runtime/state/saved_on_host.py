"""`place saved on host`: `rt.saved_on_host(function, p, *inputs)` calls a layer that keeps what it
saves for backward in the host's memory.

Forward sends each tensor on a stream of its own. The device holds it until the next such call has
ended, or the forward of the microbatch. The first gradient that comes to the call asks for all of
them, the last one first, and each is waited for alone."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from shardlang.runtime.comm.mesh import world
from shardlang.runtime.device import kind_of
from shardlang.runtime.state import alive

__all__ = ["saved_on_host"]


# What one memory holds: its identity, how often it has been changed, and the type that reads it.
_Saved = tuple[int, int, torch.dtype]


class _Waiting:
    """The memory of one tensor, from its way to the host until backward has read it. wait: makes
    the device wait until it is on the host. read: the device has waited until it is back."""

    coming: Callable[[], Tensor] | None = None
    read = False

    def __init__(self, call: _Call, x: Tensor) -> None:
        self.call, self.device = call, x.device
        self.here, self.wait = kind_of(x.device).leaving(x)

    def there(self) -> Tensor:
        """On the device again."""
        if self.coming is None:
            self.call.bring()
        assert self.coming is not None
        self.read = True
        return self.coming()

    def __del__(self) -> None:
        """Waits for what backward has not read: its memory is used anew now."""
        if self.coming is not None and not self.read:
            self.coming()


class _Call:
    """The tensors that one call has saved, by their memory. held: on the device yet."""

    def __init__(self, stay: set[int]) -> None:
        self.stay = stay
        self.held: dict[_Saved, tuple[Tensor, _Waiting]] = {}
        self.order: list[weakref.ref[_Waiting]] = []

    def pack(self, x: Tensor) -> Any:
        memory = x.untyped_storage()._cdata
        leaves = (x.is_floating_point() or x.dtype == torch.bool) and kind_of(x.device).apart
        if alive.owner(x) is not None or memory in self.stay or not leaves:
            return alive.pack(x)
        saved = memory, x._version, x.dtype
        if saved not in self.held:
            elements = x.untyped_storage().nbytes() // x.element_size()
            flat = x.as_strided((elements,), (1,), 0)
            waiting = _Waiting(self, flat)
            self.held[saved] = flat, waiting
            self.order.append(weakref.ref(waiting))
        return self.held[saved][1], x.size(), x.stride(), x.storage_offset()

    def unpack(self, packed: Any) -> Tensor:
        if isinstance(packed, Tensor) or not isinstance(packed[0], _Waiting):
            return alive.unpack(packed)
        waiting, size, stride, offset = packed
        return waiting.there().as_strided(size, stride, offset)

    def release(self) -> None:
        """The device lets go what it holds, once that is on the host."""
        for _, waiting in self.held.values():
            waiting.wait()
        self.held.clear()

    def bring(self) -> None:
        for found in (reference() for reference in reversed(self.order)):
            if found is not None:
                found.coming = kind_of(found.device).coming(found.here, found.device)
        self.order.clear()


class _HostPass:
    """The forward of one microbatch. stay: the memories that are there anyway."""

    stay: set[int] = set()  # noqa: RUF012
    last: _Call | None = None


@contextlib.contextmanager
def sending(there: Iterable[Tensor]) -> Iterator[None]:
    """Context of a forward pass. there: parameters, their copies and states, which stay."""
    _HostPass.stay = {x.untyped_storage()._cdata for x in there}
    try:
        yield
    finally:
        _ended(None)


def _ended(call: _Call | None) -> None:
    """A call has ended; None: the pass has."""
    if _HostPass.last is not None:
        _HostPass.last.release()
    _HostPass.last = call


def saved_on_host(function: Callable[..., Any], *inputs: Any) -> Any:
    """function(*inputs), on a device with all that it saves for backward waiting in the host's
    memory. Inputs without gradient, and those that another stage has sent, stay."""
    if not torch.is_grad_enabled() or torch.compiler.is_compiling() or not kind_of(world.device).apart:
        return function(*inputs)
    given = [x for x in inputs if isinstance(x, Tensor) and x.is_leaf]
    call = _Call({*_HostPass.stay, *(x.untyped_storage()._cdata for x in given)})
    try:
        with torch.autograd.graph.saved_tensors_hooks(call.pack, call.unpack):
            made = function(*inputs)
    except BaseException:
        call.release()
        raise
    _ended(call)
    return made
