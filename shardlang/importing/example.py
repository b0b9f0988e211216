"""The function that `MODULE:FACTORY` names, and the module with example tensors that it gives under
a seed. Inputs that are dicts or lists of tensors become an input for each tensor. Layers that a
module leaves out at random in training, which no trace can show, stay in."""

from __future__ import annotations

import copy
import importlib
import os
import random
import re
import sys
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from shardlang.errors import RunError
from shardlang.hints.nearest import nearest


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
        if isinstance(error, ModuleNotFoundError) and f"{home}.".startswith(f"{error.name}."):
            raise _missing(place.rpartition(":")[0]) from error
        raise RunError("SH600", f"`{home}` cannot be imported: {type(error).__name__}: {error}") from error
    factory: Callable[[], Any] | None = getattr(found, name, None)
    if factory is None or not callable(factory):
        raise RunError("SH600", f"`{home}` has no function `{name}`", help="name one that gives (module, inputs)")
    return factory


def _missing(home: str) -> RunError:
    """SH600 for a module that is not there, by its name or its file's."""
    is_file = home.endswith(".py")
    file = Path(home if is_file else home.replace(".", "/") + ".py")
    near = nearest(file.name, (path.name for path in file.parent.glob("*.py")))
    help = "a file, `models/small.py:build`, or a module of Python, `models.small:build`"
    if near is not None:
        other = file.with_name(near).as_posix()
        help = f"did you mean `{other if is_file else other.removesuffix('.py').replace('/', '.')}`?"
    return RunError("SH600", f"there is no {'file' if is_file else 'module'} `{home}`", help=help)


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
    if not pair or not isinstance(made[0], nn.Module) or not isinstance(made[1], Mapping):
        help = 'return a module and its example tensors: `return net, {"x": torch.rand(2, 8)}`'
        raise RunError("SH600", f"`{place}` gives no module with example tensors by name", help=help)
    module, inputs = made
    return module, dict(inputs) if all(map(_is_input, inputs.values())) else _apart(module, dict(inputs), place)


def _is_input(value: object) -> bool:
    return isinstance(value, Tensor) and value.dim() > 0


def _apart(module: nn.Module, inputs: Mapping[str, Any], place: str) -> dict[str, Tensor]:
    """The tensors of inputs that are dicts and lists, which the module takes by these names from
    now on: one in a dict has its key's, one in a list its list's and a number; where another has
    that, the names of all that it is in come first."""
    leaves, spec = pytree.tree_flatten_with_path(inputs)
    whole = [[str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", "")))) for key in path]
             for path, _ in leaves]  # fmt: skip
    short = [_joined(parts[max(at for at, part in enumerate(parts) if not at or not part.isdigit()) :])
             for parts in whole]  # fmt: skip
    names = [one if short.count(one) == 1 else _joined(parts) for one, parts in zip(short, whole, strict=True)]
    help = "an input is a tensor with a dim, or a dict or a list of such"
    for name, (_, value) in zip(names, leaves, strict=True):
        if not _is_input(value):
            what = "a tensor without dims" if isinstance(value, Tensor) else f"no tensor: it is {value!r:.40}"
            raise RunError("SH600", f"`{place}` gives an input `{name}` that is {what}", help=help)
        if names.count(name) > 1:
            raise RunError("SH600", f"two inputs of `{place}` would be called `{name}`", help="rename a key")

    def taken(self: nn.Module, **tensors: Tensor) -> Any:
        return type(self).forward(self, **pytree.tree_unflatten([tensors[name] for name in names], spec))

    module.forward = types.MethodType(taken, module)
    return {name: value for name, (_, value) in zip(names, leaves, strict=True)}


def _joined(parts: list[str]) -> str:
    return re.sub(r"\W", "_", "_".join(parts))


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
