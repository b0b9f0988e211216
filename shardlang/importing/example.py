"""The function that `MODULE:FACTORY` names, and the module with example tensors that it gives under
a seed. Layers that a module leaves out at random in training, which no trace can show, stay in."""

from __future__ import annotations

import importlib
import os
import random
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from shardlang.errors import RunError


def load(place: str) -> Callable[[], Any]:
    """The function that `MODULE:FACTORY` or `FILE.py:FACTORY` names. It runs the user's module.
    RunError SH600."""
    home, _, name = place.rpartition(":")
    if not home or not name:
        raise RunError("SH600", f"`{place}` is not MODULE:FACTORY", help="`models.small:build`, or `small.py:build`")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        if home.endswith(".py"):
            sys.path.insert(0, str(Path(home).resolve().parent))
            home = Path(home).stem
        found = importlib.import_module(home)
    except Exception as error:
        raise RunError("SH600", f"`{home}` cannot be imported: {type(error).__name__}: {error}") from error
    factory: Callable[[], Any] | None = getattr(found, name, None)
    if factory is None or not callable(factory):
        raise RunError("SH600", f"`{home}` has no function `{name}`", help="name one that gives (module, inputs)")
    return factory


def example(factory: Callable[[], Any], place: str, seed: int) -> tuple[nn.Module, dict[str, Tensor]]:
    """The module and the tensors that the factory gives under a seed. RunError SH600 where that is
    no module with inputs."""
    torch.manual_seed(seed)
    random.seed(seed)
    try:
        made = factory()
    except Exception as error:
        raise RunError("SH600", f"`{place}` fails: {type(error).__name__}: {error}") from error
    pair = isinstance(made, tuple) and len(made) == 2
    good = pair and isinstance(made[0], nn.Module) and isinstance(made[1], Mapping)
    if not good or not all(isinstance(each, Tensor) and each.dim() for each in made[1].values()):
        help = 'return a module and its example tensors: `return net, {"x": torch.rand(2, 8)}`'
        raise RunError("SH600", f"`{place}` gives no module with example tensors by name", help=help)
    return made[0], dict(made[1])


class Never:
    """A probability of 0 that a random number, which has no value in a trace, is never below."""

    def __gt__(self, other: object) -> bool:
        return False

    def __ge__(self, other: object) -> bool:
        return False

    def __bool__(self) -> bool:
        return False


def left_out(module: nn.Module) -> dict[str, float]:
    """The modules that leave layers out at random in training, with the probability; from now on
    they do not."""
    found = {}
    for path, each in module.named_modules():
        for name in ("layerdrop", "encoder_layerdrop", "decoder_layerdrop"):
            value = getattr(each, name, None)
            if isinstance(value, float) and value > 0:
                found[f"{path}.{name}" if path else name] = value
            if isinstance(value, float):
                setattr(each, name, Never())
    return found
