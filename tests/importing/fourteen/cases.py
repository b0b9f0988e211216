"""The fourteen models with what they are trained on: labels, a loss in both languages, and the dims that are split."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.importing.fourteen import dlrm, library, lstm, resnet, unet

STEPS = 5
_Loss = Callable[[Tensor, Tensor], Tensor]
_LOSSES: dict[str, _Loss] = {
    "cross_entropy": lambda out, label: F.cross_entropy(out.flatten(0, -2), label.flatten()),
    "mse_loss": F.mse_loss,
    "bce_with_logits": F.binary_cross_entropy_with_logits,
}


@dataclass(frozen=True)
class Case:
    """build: the module and example tensors. still: the module without dropout. loss: a word of the language. label:
    the shape of the label of a batch behind its first dim. classes: of a label of whole numbers, how many, else 0.
    split: dims of tensor parallelism. output: the result that is trained. microbatches: of the pipeline; a norm of the
    batch allows one alone. rows: the name of the first dim of inputs that are others than the examples, and rules for
    these."""

    build: Callable[[], library.Example]
    still: Callable[[], library.Example]
    loss: str
    label: tuple[int, ...]
    split: str
    classes: int = 0
    output: str | None = None
    microbatches: int = 2
    rows: Mapping[str, str] = field(default_factory=dict)
    rules: str = ""

    def labels(self, count: int, draws: torch.Generator) -> Tensor:
        shape = (count, *self.label)
        if self.classes:
            return torch.randint(0, self.classes, shape, generator=draws)
        return torch.rand(shape, generator=draws).round() if self.loss == "bce_with_logits" else torch.rand(
            shape, generator=draws)  # fmt: skip

    def theirs(self, net: nn.Module, inputs: dict[str, Tensor], label: Tensor) -> Tensor:
        """The loss as torch has it."""
        found = net(**inputs)
        if not isinstance(found, Tensor):
            found = found[self.output] if self.output else found[0]
        return _LOSSES[self.loss](found, label)


def _library(build: Callable[..., library.Example], loss: str, label: tuple[int, ...], split: str, **more: Any) -> Case:
    return Case(build, lambda: build(dropout=False), loss, label, split, **more)


def _words(build: Callable[..., library.Example], split: str, seq: int = 6, **more: Any) -> Case:
    return _library(build, "cross_entropy", (seq,), split, classes=50, **more)


def _file(module: Any, loss: str, label: tuple[int, ...], split: str, **more: Any) -> Case:
    return Case(module.build, module.build, loss, label, split, **more)


CASES = {
    "gpt2": _words(library.gpt2, "heads, ffn"),
    "llama": _words(library.llama, "kv_heads, ffn"),
    "qwen3": _words(library.qwen3, "kv_heads, ffn"),
    "mistral": _words(library.mistral, "kv_heads, ffn"),
    "bert": _words(library.bert, "heads, ffn"),
    "roberta": _words(library.roberta, "heads, ffn"),
    "t5": _words(library.t5, "heads, ffn", 5, output="logits"),
    "vit": _library(library.vit, "cross_entropy", (), "heads, ffn", classes=7),
    # A text is told from all images of the batch.
    "clip": _library(library.clip, "cross_entropy", (), "heads", classes=4, output="logits_per_text",
                     microbatches=1, rows={"pixel_values": "images"}, rules="split images over dp?"),
    "whisper": _library(library.whisper, "mse_loss", (12, 16), "heads, ffn"),
    "resnet": _file(resnet, "cross_entropy", (), "layer1.hidden, layer2_0.hidden, layer2_1.hidden",
                    classes=10, microbatches=1),
    "unet": _file(unet, "mse_loss", (6, 16, 16), "inc.hidden, down1.conv.hidden, up2.conv.hidden", microbatches=1),
    "dlrm": _file(dlrm, "bce_with_logits", (), "hidden"),
    "lstm": _file(lstm, "cross_entropy", (), "hidden", classes=4),
}  # fmt: skip
