"""The functions of layers -> the same, each compiled once by torch.compile where a run asks for it:
`@rt.block("h")`.

All that differs between the calls of a block is a tensor that the compiled function is given: the
parameters of its layer, gathered or copied before the call; the random keys; the number of the
microbatch. So neither the layer, nor the step, nor the microbatch is looked at
when a call is compared with what has been compiled. torch's compiler is imported only here, and
only where it is asked for."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FunctionType
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.autograd import Function

from shardlang.errors import RunError
from shardlang.runtime import random
from shardlang.runtime.comm import traced
from shardlang.runtime.comm.mesh import world
from shardlang.runtime.device import KINDS, kind_of
from shardlang.runtime.program import RunProgram
from shardlang.runtime.state.copies import at_once
from shardlang.runtime.tree import LayerNode, path

_TORCH = 2, 13
_HELP = "`compile = none` in `train`, or --no-compile"
# The path of a draw below its layer; with the number of the call.
Draw = str | tuple[str, int]


class Compiling:
    """Whether blocks are compiled, and by which backend of torch.compile."""

    on = False
    backend = "inductor"


class CompiledFunction:
    """A function of tensors alone, which is compiled where blocks are."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self._compiled: dict[bool, Callable[..., Any]] = {}

    def __call__(self, *given: Any, **options: Any) -> Any:
        if not Compiling.on or torch.compiler.is_compiling():
            return self.function(*given, **options)
        kind = torch.is_grad_enabled()
        run = self._compiled.get(kind) or self._compiled.setdefault(kind, _compiled(self.function))
        try:
            return run(*given, **options)
        except _errors() as error:
            raise _refused(self.function, error) from error


def applied(function: type[Function], *given: Any) -> Any:
    """`function` of these. torch's compiler takes each tensor once: what comes again is a view."""
    again = [isinstance(x, Tensor) and any(x is y for y in given[:at]) for at, x in enumerate(given)]
    return function.apply(*(x.view_as(x) if twice else x for x, twice in zip(given, again, strict=True)))


class CompiledBlock(CompiledFunction):
    """The function of a layer: its first argument is the layer. draws: the paths below the layer
    that it draws random numbers for."""

    def __init__(self, function: Callable[..., Any], draws: Sequence[Draw]) -> None:
        super().__init__(function)
        self.draws = [(draw, 0) if isinstance(draw, str) else draw for draw in draws]
        self._layers: dict[int, CompiledLayer] = {}

    def __call__(self, p: LayerNode, *given: Any) -> Any:
        if not Compiling.on or torch.compiler.is_compiling():
            return self.function(p, *given)
        layer = self._layers.get(id(p)) or self._layers.setdefault(id(p), CompiledLayer(p, self.draws))
        world.mark_microbatch()
        with layer.now() as tree:
            return super().__call__(tree, *given)


class CompiledLayer:
    """A layer as a compiled block is given it: a tree of tensors alone, whose paths begin at the
    layer, with a tensor for each random key.

    node: the layer itself; it is held, so that no other one comes to have its identity."""

    def __init__(self, node: LayerNode, draws: Sequence[tuple[str, int]]) -> None:
        self.node, self.keys = node, dict[tuple[str, int], Tensor]()
        self.draws = {(".".join(filter(None, (path(node), below))), call): (below, call) for below, call in draws}
        # Where each member goes, under which name, and what is asked for it: a tensor or what makes
        # one.
        self.members: list[tuple[dict[Any, Any], Any, Mapping[Any, Any]]] = []
        self.tree = self._copy(node, "")

    def _copy(self, node: LayerNode, below: str) -> LayerNode:
        copy = LayerNode(below, self.keys)
        parts: list[tuple[dict[Any, Any], Mapping[Any, Any]]] = [
            (copy.__dict__, node.__dict__), (copy._items, node._items), (copy.__dict__, node._made),
        ]  # fmt: skip
        for own, given in parts:
            for name, member in given.items():
                if isinstance(member, LayerNode):
                    own[name] = self._copy(member, path(copy._child(name)))
                elif isinstance(member, Tensor) or callable(member):
                    self.members.append((own, name, given))
        return copy

    @contextlib.contextmanager
    def now(self) -> Iterator[LayerNode]:
        """The tree with the tensors of this moment, which it does not hold longer."""
        values = at_once([given[name] for _, name, given in self.members])
        for (where, name, _), value in zip(self.members, values, strict=True):
            where[name] = value
        Keys.fill(self)
        try:
            yield self.tree
        finally:
            for where, name, _ in self.members:
                del where[name]


class Keys:
    """The keys of one step, as tensors on this rank's device: all that earlier steps asked for are
    made at once, and copied there at once. when: the seed and the step."""

    when: tuple[int, int] | None = None
    made: ClassVar[dict[tuple[str, int], Tensor]] = {}

    @classmethod
    def fill(cls, layer: CompiledLayer) -> None:
        """Gives a layer its keys of the current step."""
        now = random.KeyParts.seed, random.KeyParts.step
        missing = [at for at in layer.draws if at not in cls.made]
        if missing or cls.when != now:
            wanted = missing if cls.when == now else [*cls.made, *missing]
            there = kind_of(world.device).copied(random.key_tensor(wanted), world.device)
            cls.made.update(zip(wanted, there.unbind(), strict=True))
            cls.when = now
        layer.keys.update((below, cls.made[at]) for at, below in layer.draws.items())


def block(*draws: Draw) -> Callable[[Callable[..., Any]], CompiledBlock]:
    """A decorator of the function of a layer, which `compile = blocks` compiles. draws: what it
    draws random numbers for."""
    return lambda function: CompiledBlock(function, draws)


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function by torch.compile. Its code is a copy: torch keeps what it has compiled by code,
    and training and evaluation are to be apart."""
    assert isinstance(function, FunctionType)
    code, around = function.__code__.replace(), (function.__globals__, function.__name__, function.__defaults__)
    copy = FunctionType(code, *around, function.__closure__)
    made: Callable[..., Any] = torch.compile(copy, fullgraph=True, dynamic=False, backend=Compiling.backend)
    return made


def _errors() -> tuple[type[BaseException], ...]:
    from torch._dynamo.exc import TorchDynamoException

    return (TorchDynamoException,)


def _refused(function: Callable[..., Any], error: BaseException) -> RunError:
    place = (function.__doc__ or "").partition(": ")[0]
    reason = str(error).strip().partition("\n")[0]
    return RunError("SH514", f"`{function.__name__}` ({place}) cannot be compiled: {reason}", help=_HELP)


@contextlib.contextmanager
def told() -> Iterator[None]:
    """Backward is compiled when it first runs: a RunError where that fails, as in a call."""
    try:
        yield
    except Exception as error:
        if not Compiling.on or not isinstance(error, _errors()):
            raise
        reason = str(error).strip().partition("\n")[0]
        raise RunError("SH514", f"the backward of a block cannot be compiled: {reason}", help=_HELP) from error


def asked(program: RunProgram, compile: bool | None) -> str:
    """The setting of a program, with what was asked for at the start (None: nothing)."""
    return program.compile if compile is None else "blocks" if compile else "none"


def require(program: RunProgram, kind: str) -> None:
    """RunError where blocks are to be compiled for a kind of device and that cannot be done here.
    The compiler is imported now, so that ranks which are forked later share it; for a device, not
    torch's code generator, which asks CUDA for its devices: forked ranks could then have none."""
    if program.compile == "none":
        return
    start(program, generates=not KINDS[kind].apart)
    lack = KINDS[kind].compiler_lack()
    if tuple(map(int, torch.__version__.split(".")[:2])) < _TORCH:
        # Of attention in parts 2.11 compiles wrong gradients, without a word.
        lack = f"torch {'.'.join(map(str, _TORCH))} or newer: {torch.__version__} may compile wrong gradients"
    if lack:
        raise RunError("SH514", f"blocks cannot be compiled on this machine, which lacks {lack}", help=_HELP)


def start(program: RunProgram, generates: bool = True) -> None:
    """Compiles blocks from now on, or runs them as they are. generates: in this very process."""
    Compiling.on = program.compile == "blocks"
    if Compiling.on:
        importlib.import_module("torch._dynamo")
        traced.define()
        if generates and Compiling.backend == "inductor":
            traced.keep_order()
