"""The function that `MODULE:FACTORY` names, and the module with example tensors that it gives under
a seed. Layers that a module leaves out at random in training, which no trace can show, stay in."""

from __future__ import annotations

import copy
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

    def __lt__(self, other: object) -> bool:
        return True

    def __le__(self, other: object) -> bool:
        return True

    def __bool__(self) -> bool:
        return False


def left_out(module: nn.Module) -> dict[str, str]:
    """The attributes by which modules do something at random in training, which no trace can show,
    and what; from now on they do not. They get a copy of a `config` that has one."""
    found = {}
    copies: dict[int, Any] = {}
    for path, each in module.named_modules():
        config = getattr(each, "config", None)
        there = {"": vars(each), "config.": vars(config) if hasattr(config, "__dict__") else {}}
        random = {f"{home}{name}": did for home, values in there.items() for name, did in _random(values).items()}
        for name, did in random.items():
            home, _, last = name.rpartition(".")
            # Modules share a configuration, which is told once.
            if did and not (home and id(config) in copies):
                found[f"{path}.{name}" if path else name] = did
        for name in random:
            home, _, last = name.rpartition(".")
            if home:
                each.config = copies.setdefault(id(config), copy.copy(config))
            vars(each.config if home else each)[last] = Never() if last.endswith("layerdrop") else 0.0
    return found


def _random(values: Mapping[str, Any]) -> dict[str, str]:
    """The probabilities by which layers are left out, or spans of an input hidden, and what they
    do; "" for one that does nothing."""
    found = {}
    for name, value in values.items():
        layers = name.endswith("layerdrop")
        if isinstance(value, float) and (layers or name in ("mask_time_prob", "mask_feature_prob")):
            what = "leaves layers out" if layers else "hides spans of its input"
            hides = value > 0 and (layers or values.get("apply_spec_augment", True))
            found[name] = f"{what} at random in training, with a probability of {value}" if hides else ""
    return found
