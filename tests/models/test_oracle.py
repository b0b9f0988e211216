"""GPT-2 and Llama against the transformers library: the same weights through a name map, the same numbers after it.

Logits, loss, every gradient and five steps of AdamW, on one rank and on eight; and the same in bf16.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from shardlang.runtime.weight_names import Named, Names
from tests.emit.sources import planned
from tests.end_to_end.curves import RunOf
from tests.models.planned import HERE, program_of
from tests.models.watch import parameters, value, watched

transformers = pytest.importorskip("transformers", reason="the package transformers (extra `oracle`) is not installed")
pytestmark = pytest.mark.slow
BATCH, SEQ, VOCAB, STEPS = 16, 16, 48, 5
RUNS = [RunOf("", 1), RunOf("mixed", 8)]


def theirs_of(name: str, tied: bool = False) -> Any:
    """Their model at the size of ours, with weights large enough for every part of it to matter."""
    torch.manual_seed(7)
    common = {"vocab_size": VOCAB, "bos_token_id": 0, "eos_token_id": 0}
    if name == "gpt2":
        config = transformers.GPT2Config(
            n_positions=16, n_embd=32, n_layer=2, n_head=4, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, **common
        )
        model = transformers.GPT2LMHeadModel(config)
    else:
        config = transformers.LlamaConfig(
            hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=8, num_key_value_heads=4,
            max_position_embeddings=64, rms_norm_eps=1e-5, tie_word_embeddings=tied, **common,
        )  # fmt: skip
        model = transformers.LlamaForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape) * 0.3 + (parameter.dim() == 1))
    return model.train()


def text_of(name: str, precision: str, optimizer: str) -> str:
    """Our program, reading its batches and weights from files."""
    text = (HERE / f"{name}.shard").read_text()
    start, end = text.index("  data = "), text.index("\n", text.index("  data = "))
    fields = "tokens: i64[batch, seq] < 48, label: i64[batch, seq] < 48"
    text = text[:start] + f'  data = numpy("data.npz", {fields}, shuffle = false)' + text[end:]
    start = text.index("  optimizer = ")
    tail = ["steps = 5", f"precision = {precision}", f'init = safetensors("w.safetensors", names = "std.{name}")']
    mixed = text[:start].replace("  zero 2 over (dp, cp)\n", "").replace("  zero 3 over (dp, cp)\n", "")
    return mixed + optimizer + "".join(f"  {line}\n" for line in tail) + "}\n"


ADAMW = """  optimizer = adamw(lr = 1e-3, weight_decay = 0.1)
  optimizer at **.bias, **.*norm*.** = adamw(weight_decay = 0.0)
"""


def as_ours(tensors: dict[str, Tensor], text: str) -> dict[str, Tensor]:
    """Their tensors (weights or gradients) under our names, by the map that the program names."""
    program = program_of(text)
    assert program.training is not None and program.training.init is not None
    found = program.training.init[1]["names"]
    rules = [Named(r.ours, r.theirs, r.transposed, r.part or (1, 1)) for r in found.rules]
    graph = program.graph
    places = Names(rules, found.prefix).places([graph.values[v].path for v in graph.params], tensors)
    ours = {}
    for path, place in places.items():
        tensor = tensors[place.name]
        tensor = tensor.T if place.transposed else tensor
        ours[path] = tensor.chunk(place.part[1])[place.part[0] - 1]
    return ours


def batches(folder: Path) -> tuple[Tensor, Tensor]:
    """[STEPS, BATCH, SEQ] tokens and the tokens after them, written where the program reads them."""
    draw = np.random.default_rng(3)
    numbers = draw.integers(0, VOCAB, (STEPS * BATCH, SEQ + 1))
    tokens, label = numbers[:, :-1], numbers[:, 1:]
    np.savez(folder / "data.npz", tokens=tokens, label=label)
    shape = (STEPS, BATCH, SEQ)
    return torch.from_numpy(tokens.reshape(shape).copy()), torch.from_numpy(label.reshape(shape).copy())


def write(model: Any, folder: Path) -> None:
    """The file of weights as the library saves it: a tied tensor once."""
    tensors = {}
    for name, tensor in model.state_dict().items():
        if name != "lm_head.weight" or not model.config.tie_word_embeddings:
            tensors[name] = tensor.float().contiguous()
    save_file(tensors, folder / "w.safetensors")


def groups_of(model: Any) -> list[dict[str, Any]]:
    """Weight decay for all but biases and norms."""
    kept = {n: p for n, p in model.named_parameters() if n.endswith("bias") or "norm" in n or "ln_" in n}
    rest = [p for n, p in model.named_parameters() if n not in kept]
    return [{"params": rest, "weight_decay": 0.1}, {"params": list(kept.values()), "weight_decay": 0.0}]


def step_of(model: Any, tokens: Tensor, label: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Their logits, loss and gradients of one batch."""
    model.zero_grad()
    logits = model(input_ids=tokens).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), label.flatten())
    loss.backward()
    gradients = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    return logits.detach(), loss.detach(), gradients


def far(mine: Tensor, theirs: Tensor) -> float:
    """The greatest difference, relative to the greatest number."""
    return ((mine.double() - theirs.double()).abs().max() / theirs.double().abs().max().clamp(min=1e-30)).item()


def worst(mine: dict[str, Tensor], theirs: dict[str, Tensor], besides: Iterable[str] = ()) -> tuple[float, str]:
    assert mine.keys() == theirs.keys()
    return max((far(mine[path], theirs[path]), path) for path in mine if not path.endswith(tuple(besides)))


@pytest.mark.parametrize(("name", "tied"), [("gpt2", True), ("llama", False), ("llama", True)])
def test_logits_loss_and_gradients(name: str, tied: bool, tmp_path: Path) -> None:
    model, text = theirs_of(name, tied), text_of(name, "f32", ADAMW)
    if name == "llama" and tied:
        text = text.replace("rope = 10000.0)", "rope = 10000.0, tied = true)")
        assert "tied = true" in text
    write(model, tmp_path)
    tokens, label = batches(tmp_path)
    logits, loss, gradients = step_of(model, tokens[0], label[0])
    found = watched(text, RUNS, 1, tmp_path)
    for run in RUNS:
        plan, records = planned(text, run.ranks, run.strategy or None), found[run][1]
        assert far(value(plan, "train.logits", records), logits) < 1e-5, run.name
        assert records[0].figures["loss"] == pytest.approx(loss.item(), rel=1e-4)
        mine = parameters(plan, [r.reduced for r in records])
        # The keys' bias moves all scores of a query alike, so its gradient is nothing but rounding.
        assert worst(mine, as_ours(gradients, text), ["attention.k.bias"])[0] < 1e-4, run.name


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_five_steps_of_adamw(name: str, tmp_path: Path) -> None:
    """In float64, in which the rounding of a gradient is far below what AdamW adds to its root (1e-8)."""
    model, text = theirs_of(name), text_of(name, "f64", ADAMW)
    write(model, tmp_path)
    model = model.double()
    tokens, label = batches(tmp_path)
    optimizer = torch.optim.AdamW(groups_of(model), lr=1e-3)
    losses = []
    for step in range(STEPS):
        losses.append(step_of(model, tokens[step], label[step])[1].item())
        optimizer.step()
    theirs = as_ours({n: p.detach() for n, p in model.named_parameters()}, text)
    found = watched(text, RUNS, STEPS, tmp_path)
    for run in RUNS:
        plan, records = planned(text, run.ranks, run.strategy or None), found[run]
        curve = [records[step][0].figures["loss"] for step in range(1, STEPS + 1)]
        # Their rotary angles are of float32 even so.
        assert curve == pytest.approx(losses, rel=1e-9 if name == "gpt2" else 1e-6), run.name
        mine = parameters(plan, [r.parameters for r in records[STEPS]])
        assert worst(mine, theirs)[0] < (1e-9 if name == "gpt2" else 1e-5), run.name


def off(mine: dict[str, Tensor], exact: dict[str, Tensor]) -> float:
    """The root of the mean square of all differences."""
    assert mine.keys() == exact.keys()
    squares = sum((mine[path].double() - exact[path].double()).square().sum().item() for path in exact)
    return math.sqrt(squares / sum(x.numel() for x in exact.values()))


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_stream_in_bf16_rounds_as_theirs(name: str, tmp_path: Path) -> None:
    """Their model in bf16 and ours, each beside theirs in float64, of the same f32 weights. Roundings are independent,
    so their squares add up: up to twice as many of them as theirs (of sums over ranks, say) are off by sqrt(2) of it.
    """
    model, text = theirs_of(name), text_of(name, "bf16(stream = bf16)", ADAMW)
    write(model, tmp_path)
    tokens, label = batches(tmp_path)
    logits, loss, gradients = step_of(copy.deepcopy(model).double(), tokens[0], label[0])
    exact = as_ours(gradients, text)
    low_logits, _, low_gradients = step_of(copy.deepcopy(model).bfloat16(), tokens[0], label[0])
    found = watched(text, RUNS, 1, tmp_path)
    for run in RUNS:
        plan, records = planned(text, run.ranks, run.strategy or None), found[run][1]
        mine = value(plan, "train.logits", records)
        assert mine.dtype == torch.bfloat16
        assert off({"": mine}, {"": logits}) <= math.sqrt(2) * off({"": low_logits}, {"": logits}), run.name
        # A label's share moves the loss by at most what its logits differ by, both ways.
        assert abs(records[0].figures["loss"] - loss.item()) <= 2 * (mine.double() - logits).abs().max(), run.name
        reduced = parameters(plan, [r.reduced for r in records])
        assert all(x.dtype == torch.float32 for x in reduced.values())
        assert off(reduced, exact) <= math.sqrt(2) * off(as_ours(low_gradients, text), exact), run.name
