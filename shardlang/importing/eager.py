"""A module as Python runs it, beside what its trace shows: gradients of its own, which a trace
leaves out, and other steps in evaluation (`module.eval()`) than in training."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from shardlang.importing.compare import DRAWN, drawn, top_k
from shardlang.importing.steps.nodes import reached
from shardlang.importing.steps.sizes import buffers, restore
from shardlang.importing.steps.trace import quiet

# The module computes in f32, and what it is compared with in f64.
_ALLOWED = 1e-3


def own_backwards(module: nn.Module, inputs: Mapping[str, Tensor]) -> dict[str, str]:
    """The classes of torch.autograd.Function whose backward is not the gradient of their forward,
    which is all that a trace shows, and that as a fact."""
    kinds = {type(node)._forward_cls for node in _nodes(_run(module, inputs, True))
             if isinstance(node, torch.autograd.function.BackwardCFunction)}  # fmt: skip
    found = {}
    for kind in sorted(kinds, key=lambda kind: str(kind.__qualname__)):
        if not kind.__module__.startswith("torch.") and not _is_gradient(kind, _given(kind, module, inputs)):
            fact = "has a backward of its own that is not the gradient of its forward, and the program would have that"
            found[kind.__name__] = fact
    return found


def evaluated(module: nn.Module, inputs: Mapping[str, Tensor]) -> list[Any] | None:
    """The results of the module in evaluation; None if it cannot be run so."""
    found = _run(module, inputs, False)
    return None if found is None else torch.utils._pytree.tree_flatten(found)[0]


def differs(mine: Sequence[Tensor], theirs: Sequence[Any]) -> str:
    """How the results of a module in evaluation differ from what it computes in training without
    dropout, as a fact; "" if they do not."""
    for number, (one, other) in enumerate(zip(mine, theirs, strict=True), 1):
        if not isinstance(other, Tensor) or one.shape != other.shape:
            return f"result {number} is another one"
        one, other = one.detach().double(), other.detach().double()
        size = max(float(one.abs().max()) if one.numel() else 0.0, 1e-6)
        if not torch.allclose(one / size, other / size, rtol=0, atol=_ALLOWED, equal_nan=True):
            return f"result {number} differs, by {float((one - other).abs().max()) / size:.2g} of its largest number"
    return ""


class _Drawn(TorchDispatchMode):
    """Random numbers, and the choice among equal ones, are those with which traces are compared."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func.overloadpacket)
        if name == "aten.topk":
            return top_k(*args, **(kwargs or {}))
        if name not in DRAWN:
            return func(*args, **(kwargs or {}))
        like = name.endswith("like")
        made = drawn(DRAWN[name], args[0].shape if like else args[0])
        return made.to((kwargs or {}).get("dtype") or (args[0].dtype if like else torch.get_default_dtype()))


def _run(module: nn.Module, inputs: Mapping[str, Tensor], training: bool) -> Any:
    """The results of the module; None where it cannot be run. Its buffers stay as they are."""
    state = buffers(module)
    module.train(training)
    try:
        with torch.random.fork_rng(devices=[]), quiet(), _Drawn(), torch.set_grad_enabled(training):
            return module(**{name: each.clone() for name, each in inputs.items()})
    except Exception:
        return None
    finally:
        restore(state)
        module.train()


def _nodes(results: Any) -> Iterable[Any]:
    """The steps of autograd behind results."""
    tensors = [each for each in torch.utils._pytree.tree_flatten(results)[0] if isinstance(each, Tensor)]
    begin = [each.grad_fn for each in tensors if each.grad_fn is not None]
    return reached(begin, lambda node: [each for each, _ in node.next_functions if each is not None])


def _given(kind: Any, module: nn.Module, inputs: Mapping[str, Tensor]) -> list[Any]:
    """The arguments of the first call that the module makes of a function."""
    forward, found = kind.forward, list[Any]()

    def kept(*given: Any, **named: Any) -> Any:
        found.append([each.detach().clone() if isinstance(each, Tensor) else each for each in given])
        return forward(*given, **named)

    kind.forward = staticmethod(kept)
    try:
        _run(module, inputs, True)
    finally:
        kind.forward = staticmethod(forward)
    given = found[0] if found else []
    return given if _sets_up(kind) else given[1:]


def _sets_up(kind: Any) -> bool:
    """Whether the context is filled behind the forward, which then takes none."""
    return kind.setup_context is not torch.autograd.Function.setup_context


class _Context:
    """The context of a forward that autograd follows itself."""

    needs_input_grad = (True,) * 64

    def _nothing(self, *given: Any, **named: Any) -> None:
        pass

    save_for_backward = save_for_forward = mark_dirty = mark_non_differentiable = set_materialize_grads = _nothing


def _is_gradient(kind: Any, given: Sequence[Any]) -> bool:
    """Whether the backward of a function gives what autograd finds in its forward, in float64."""
    try:
        own = _gradients(kind.apply, given)
        forward = kind.forward if _sets_up(kind) else lambda *given: kind.forward(_Context(), *given)
        followed = _gradients(forward, given)
        return all(torch.allclose(a, b, rtol=1e-6, atol=1e-9) for a, b in zip(own, followed, strict=True))
    except Exception:
        return False


def _gradients(function: Any, given: Sequence[Any]) -> list[Tensor]:
    """The gradients of what a function is given, of its results times fixed random numbers."""
    floats = [isinstance(each, Tensor) and each.is_floating_point() for each in given]
    copies = [each.detach().double().clone().requires_grad_() if real else each
              for each, real in zip(given, floats, strict=True)]  # fmt: skip
    # A view, as a function may write into what it is given.
    results = function(*[each.view_as(each) if real else each for each, real in zip(copies, floats, strict=True)])
    results = [each for each in (results if isinstance(results, tuple) else (results,)) if isinstance(each, Tensor)]
    loss = sum((each * drawn("randn", each.shape)).sum() for each in results if each.is_floating_point())
    wanted = [each for each, real in zip(copies, floats, strict=True) if real]
    return list(torch.autograd.grad(loss, wanted, allow_unused=True, materialize_grads=True))
