"""Layers that a module leaves out at random in training, which no trace can show."""

from __future__ import annotations

from torch import nn


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
