"""Models of one operator that `std.nn` has, recognised by what they compute."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardlang.importing.bodies.body import Body
from shardlang.importing.bodies.dims import atoms, size

_FAN = {"weight": ("kaiming_uniform", ()), "bias": ("fan_uniform", ())}
_TURNED = {"stride": 1, "padding": 0, "output_padding": 0}
_SCALE = {"weight": ("ones", ()), "bias": ("zeros", ())}


@dataclass(frozen=True)
class Known:
    """A model of the library: its name, the operators of its body, the names of its dims, how its
    parameters start, the constants it has as formals with their defaults, and whether a body has
    only what it can say. rank: of its input; None for any."""

    name: str
    words: tuple[tuple[str, ...], ...]
    dims: Sequence[str]
    starts: Mapping[str, tuple[str, tuple[float, ...]]]
    constants: Mapping[str, Any]
    fits: Callable[[Body], bool]
    bias: bool = False
    home: str = "std.nn"
    rank: int | None = None


def _plain(body: Body) -> bool:
    return not any(value.expr.named for value in body.live() if value.expr is not None)


def _all_own(*names: str) -> Callable[[Body], bool]:
    return lambda body: {own.name for own in body.own} == set(names) and _one_dim(body)


def _one_dim(body: Body) -> bool:
    return all(len(own.value.dims) == 1 for own in body.own)


def _square(*settings: str) -> Callable[[Body], bool]:
    """Whether the window is as wide as high, and no other settings are given."""

    def fits(body: Body) -> bool:
        kernel = next(own.value for own in body.own if own.name == "weight")
        plain = all(isinstance(const.value, int) for const in body.constants)
        names = {name for value in body.values if value.expr for name, given in value.expr.named.items()
                 if given.value != given.usual}  # fmt: skip
        return len({size(term) for term in kernel.dims[2:]}) == 1 and plain and names <= set(settings)

    return fits


def _any(body: Body) -> bool:
    return True


LIBRARY = {
    each.name: each
    for each in (
        Known("Linear", (("einsum",), ("einsum", "+")), ("in", "out"), _FAN, {}, _any, True),
        Known("Embedding", (("embedding",),), ("vocab", "width"), {"weight": ("normal", (1.0,))}, {}, _plain),
        Known("LayerNorm", (("layer_norm",),), ("d",), _SCALE, {"eps": 1e-5}, _all_own("weight", "bias")),
        Known("RMSNorm", (("rms_norm",),), ("d",), _SCALE, {"eps": 1e-5}, _all_own("weight")),
        *(Known(name, ((word,),), ("in", "out"), _FAN, {"stride": 1, "padding": 0}, _square("stride", "padding"), True)
          for name, word in (("Conv1d", "conv1d"), ("Conv2d", "conv2d"))),
        *(Known(name, ((word,),), ("in", "out"), _FAN, _TURNED, _square(*_TURNED), True)
          for name, word in (("ConvTranspose1d", "conv_transpose1d"), ("ConvTranspose2d", "conv_transpose2d"))),
        Known("BatchNorm2d", (("batch_norm",),), ("channels",),
              {**_SCALE, "running_mean": ("zeros", ()), "running_var": ("ones", ())}, {"momentum": 0.1, "eps": 1e-5},
              _all_own("weight", "bias", "running_mean", "running_var"), rank=4),
    )
}  # fmt: skip


# Functions of the library, and where each is.
FUNCTIONS = {"distance_buckets": "std.transformer"}
RECURRENT = "std.recurrent"
_MADE = {name: Known(name, (), ("in", "hidden"), {}, {}, _any, home=RECURRENT) for name in ("LSTM", "GRU")}


def known(body: Body) -> Known | None:
    """The model of the library that a body is, if it is one operator on one input and its own
    parameters."""
    if body.library:
        return _MADE[body.library]
    words = tuple(value.expr.word for value in body.live() if value.expr is not None)
    if body.layers or len(body.inputs) != 1 or len(body.results) != 1:
        return None
    for each in LIBRARY.values():
        fits = each.rank in (None, len(body.inputs[0].dims))
        if fits and words in each.words and all(own.name in each.starts for own in body.own):
            return each
    return None


def arguments(kind: Known, body: Body, terms: Sequence[str]) -> list[str]:
    """The arguments of a layer of the library; `terms`: its dims as they are called there."""
    found = list(terms)
    found += [str(atom.size) for own in body.own for atom in atoms(own.value.dims[2:3])]
    for name, usual in kind.constants.items():
        value = next((const.value for const in body.constants if const.role == name), usual)
        if value != usual:
            found.append(f"{name} = {value!r}")
    if kind.bias and not any(own.name == "bias" for own in body.own):
        found.append("bias = false")
    return found + ["given = true"] * any(own.start.kind == "given" for own in body.own)
