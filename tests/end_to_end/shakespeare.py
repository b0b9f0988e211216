"""GPT-2 and Llama trained on real text on 8 ranks, beside the same models of the transformers library on one.

    python -m tests.end_to_end.shakespeare [--only gpt2,llama] [--precision f32,f64] [--steps 60] [--show 10]

The same sizes, the same random weights (saved by the library, read through `init = safetensors` and the name map), the
same batches in the same order (bytes of tinyshakespeare.txt, in the order of the text), AdamW with the same settings,
clipping by the global norm, no dropout. Ours is laid out by data, tensor, sequence and pipeline parallelism at once.
Prints both curves, every `--show` steps, and how far they are from each other at most, relative to the loss; ends with
1 where that is more than 1e-5 in f32, or 1e-12 in f64, or where a loss does not fall by a third. (The library's Llama
rounds its norms and angles to f32 whatever it is given, so that it is trained in f32 alone.) The text is read from
../shared/programs/data; where it, or the library, is not there, the command says so and ends with 2.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.end_to_end.curves import ROOT, RunOf, figures

TEXT = ROOT.parent / "shared" / "programs" / "data" / "tinyshakespeare.txt"
BATCH, SEQ, D, HEADS, FFN, LAYERS, VOCAB = 16, 64, 64, 4, 256, 2, 256
TOLERANCE = {"f32": 1e-5, "f64": 1e-12}
PRECISIONS = {"gpt2": ("f32", "f64"), "llama": ("f32",)}
RANKS = 8
SETTINGS = {"lr": 1e-3, "betas": (0.9, 0.95), "weight_decay": 0.1}
CLIP = 1.0
OURS = {
    "gpt2": f"GPT2(vocab = {VOCAB}, d = {D}, heads = {HEADS}, layers = {LAYERS}, max_len = {SEQ}, dropout = 0.0)",
    "llama": f"Llama(vocab = {VOCAB}, d = {D}, heads = {HEADS}, kv_heads = 2, ffn = {FFN}, layers = {LAYERS}, "
    "rope = 10000.0)",
}
SPLIT = {"gpt2": "heads, ffn, vocab", "llama": "heads, kv_heads, ffn, vocab"}
LINES = {
    "gpt2": ("embed, blocks[0]", "blocks[1], norm"),  # the head is the token table, in both stages
    "llama": ("blocks[0]", "blocks[1], norm, head"),
}
PROGRAM = """\
use std.LIBRARY

dim batch = BATCH, seq = SEQ

strategy three_d {
  mesh pp = 2, dp = auto, mp = 2
  split batch over dp
  split DIMS over mp
  split seq over mp?
  stages over pp {
    0: FIRST
    1: SECOND
  }
  microbatches 2
  schedule "1f1b"
  zero 1 over dp
}

train {
  model = MODEL
  data = tokens("plays.bin", batch = batch, seq = seq, shuffle = false)
  logits = model(tokens)
  loss = cross_entropy(logits, label)
  optimizer = adamw(lr = LR, betas = BETAS, weight_decay = DECAY)
  clip = CLIP
  precision = PRECISION
  init = safetensors("w.safetensors", names = "std.NAME")
  steps = STEPS
}
"""


def program(name: str, precision: str, steps: int) -> str:
    """Ours."""
    first, second = LINES[name]
    values = {
        "LIBRARY": f"{name}: {OURS[name].partition('(')[0]}", "DIMS": SPLIT[name], "FIRST": first, "SECOND": second,
        "MODEL": OURS[name], "LR": str(SETTINGS["lr"]), "BETAS": str(SETTINGS["betas"]),
        "DECAY": str(SETTINGS["weight_decay"]), "CLIP": str(CLIP), "PRECISION": precision, "NAME": name,
        "STEPS": str(steps), "BATCH": str(BATCH), "SEQ": str(SEQ),
    }  # fmt: skip
    text = PROGRAM
    for key, value in values.items():
        text = text.replace(key, value)
    return text


def theirs_of(name: str) -> Any:
    """The library's model at that size, as it begins."""
    import torch
    import transformers

    torch.manual_seed(7)
    common = {"vocab_size": VOCAB, "bos_token_id": 0, "eos_token_id": 0}
    if name == "gpt2":
        rates = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
        return transformers.GPT2LMHeadModel(
            transformers.GPT2Config(n_positions=SEQ, n_embd=D, n_layer=LAYERS, n_head=HEADS, **rates, **common)
        )
    config = transformers.LlamaConfig(
        hidden_size=D, intermediate_size=FFN, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
        num_key_value_heads=2, max_position_embeddings=SEQ, rms_norm_eps=1e-5, **common,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def saved(model: Any, to: Path) -> None:
    """The weights as the library saves them: a tied one once."""
    from safetensors.torch import save_file

    tied = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
    save_file({n: t.contiguous() for n, t in model.state_dict().items() if n not in tied}, to)


def curve_of(model: Any, text: bytes, steps: int, precision: str) -> list[float]:
    """Their losses, batch by batch through the text."""
    import torch

    model = model.double() if precision == "f64" else model
    optimizer = torch.optim.AdamW(model.train().parameters(), **SETTINGS)
    numbers = torch.tensor(list(text[: steps * BATCH * SEQ + 1]))
    tokens, label = (part.view(steps, BATCH, SEQ) for part in (numbers[:-1], numbers[1:]))
    losses = []
    for step in range(steps):
        logits = model(input_ids=tokens[step]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), label[step].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        losses.append(loss.item())
    return losses


def both(name: str, precision: str, steps: int, folder: Path, text: bytes) -> tuple[list[float], list[float]]:
    """Our losses and theirs."""
    from shardlang.runtime.data import token_files

    folder.mkdir(parents=True)
    (folder / "plays.txt").write_bytes(text)
    token_files.write([folder / "plays.txt"], folder / "plays.bin", token_files.ByteTokenizer())
    model = theirs_of(name)
    saved(model, folder / "w.safetensors")
    run = RunOf("three_d", RANKS)
    ours = figures(program(name, precision, steps), [run], folder)[run].curve()
    return ours, curve_of(model, text, steps, precision)


def wrong(ours: list[float], theirs: list[float], precision: str) -> str:
    """What does not hold, or ""."""
    if not furthest(ours, theirs) <= TOLERANCE[precision]:
        return "DIFFERS"
    first, last = theirs[0], sum(theirs[-5:]) / 5
    return "" if last < first * 2 / 3 else "DOES NOT FALL"


def furthest(ours: list[float], theirs: list[float]) -> float:
    """The greatest difference, relative to the loss."""
    return max(abs(a - b) / b for a, b in zip(ours, theirs, strict=True))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="gpt2,llama")
    parser.add_argument("--precision", default="f32,f64")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--show", type=int, default=10, help="a line for each so many steps")
    given = parser.parse_args(arguments)
    missing = [TEXT.name] if not TEXT.exists() else []
    missing += ["the library transformers"] if importlib.util.find_spec("transformers") is None else []
    if missing:
        print(f"not there: {' and '.join(missing)}")
        return 2
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for name in given.only.split(","):
            for precision in (p for p in given.precision.split(",") if p in PRECISIONS[name]):
                failed += _told(name, precision, given.steps, given.show, Path(folder) / f"{name}-{precision}")
    return 1 if failed else 0


def _told(name: str, precision: str, steps: int, show: int, folder: Path) -> bool:
    """Prints both curves; whether something does not hold."""
    begun = time.monotonic()
    ours, theirs = both(name, precision, steps, folder, TEXT.read_bytes())
    print(f"{name} in {precision}: step, ours on {RANKS} ranks, theirs, difference")
    for at in sorted({*range(0, steps, show), steps - 1}):
        print(f"  {at + 1:4}  {ours[at]:.6f}  {theirs[at]:.6f}  {abs(ours[at] - theirs[at]):.1e}")
    found, far = wrong(ours, theirs, precision), furthest(ours, theirs)
    limit = TOLERANCE[precision]
    print(f"  at most {far:.1e} of the loss ({limit:.0e} holds), {time.monotonic() - begun:.1f} s  {found}", flush=True)
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
