"""A function that communicates -> the same, which torch.compile takes as one operator:
`@moves(shape)`.

A compiled program calls the very function that runs without compiling, in the order in which it
stands there: the operator has an effect, so it is neither left out, nor called twice, nor moved
before or behind another one, whatever a rank's compiler makes of its own graph. So ranks cannot
come to wait for each other. The price: no compiler can start it earlier, behind other work."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from shardlang.runtime.comm.record import about, here
from shardlang.runtime.untraced import as_it_is

# The calls that compiled programs make, each with its line of the program; the name and number of a
# call stand in what is compiled.
_calls: list[tuple[Callable[..., Tensor], tuple[Any, ...], bytes]] = []


def moves(shape: Callable[..., Sequence[int]]) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    """A decorator of `function(x, *arguments)`, whose result is contiguous and of
    shape(x, *arguments)."""

    def decorated(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        @functools.wraps(function)
        def called(x: Tensor, *arguments: Any) -> Tensor:
            if torch.compiler.is_compiling():
                how = _known(function, *arguments)
                return torch.ops.shardlang.moved(x, how, shape(x, *arguments))
            return function(x, *arguments)

        return called

    return decorated


@as_it_is
def _known(function: Callable[..., Tensor], *arguments: Any) -> str:
    call = function, arguments, here()
    if call not in _calls:
        _calls.append(call)
    return f"{function.__name__} {_calls.index(call)}"


def _moved(x: Tensor, how: str, shape: Sequence[int]) -> Tensor:
    function, arguments, site = _calls[int(how.split()[1])]
    with about(site):
        result = function(x, *arguments)
    return result.clone() if result is x else result.contiguous()


@functools.cache
def keep_order() -> None:
    """Has torch's code generator keep the order of effects. It notes which comes behind which by
    the names of buffers, and asks for that by the names of operations (torch 2.13), so it moved an
    exchange before one that another rank began with. Here both names have it, as an order alone:
    nothing lives longer for it."""
    from torch._inductor.lowering import lowerings
    from torch._inductor.virtualized import V

    effect = torch.ops.higher_order.with_effects
    lowering = lowerings[effect]

    def lowered(*given: Any, **named: Any) -> Any:
        before = len(V.graph.operations)
        result = lowering(*given, **named)
        for made in V.graph.operations[before:]:
            known = V.graph.additional_star_deps.get(made.get_name(), ())
            V.graph.additional_buffer_deps[made.get_operation_name()].update(known)
        return result

    lowerings[effect] = lowered


@functools.cache
def define() -> torch.library.Library:
    """Makes the operator known to torch, once; the library must be held."""
    from torch._higher_order_ops.effects import _EffectType, _register_effectful_op

    library = torch.library.Library("shardlang", "FRAGMENT")
    library.define("moved(Tensor x, str how, int[] shape) -> Tensor")
    library.impl("moved", _moved, "CompositeExplicitAutograd")
    torch.library.register_fake("shardlang::moved", lambda x, how, shape: x.new_empty(shape), lib=library)
    _register_effectful_op(torch.ops.shardlang.moved.default, _EffectType.ORDERED)
    return library
