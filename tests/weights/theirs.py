"""Tiny GPT-2 and Llama, trained by `shardc run` from weights of the `transformers` library, by both ways in: the
library's models, and `shardc import`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests import warm
from tests.cli.process import SHARDC
from tests.models.test_oracle import ADAMW, batches, text_of, theirs_of

IMPORTED = """
dim batch = 16, seq = 16

strategy dp {{
  mesh dp = auto
  split batch over dp
}}

train {{
  model = {model}
  data = numpy("data.npz", tokens: i64[batch, seq] < 48, label: i64[batch, seq] < 48, shuffle = false)
  logits = model(tokens)
  loss = cross_entropy(logits, label)
  optimizer = adamw(lr = 1e-3)
  steps = 3
  checkpoint = every(2, to = "kept")
  init = safetensors("net.safetensors", names = "net.map")
}}
"""
FACTORY = """
import torch, transformers
from pathlib import Path


def build():
    model = transformers.AutoModelForCausalLM.from_pretrained(Path(__file__).parent / "theirs", use_cache=False)
    return model.eval(), {"input_ids": torch.randint(0, 48, (2, 6))}
"""


def shardc(folder: Path, *words: str) -> str:
    done = warm.run([*SHARDC, *words], cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def trained(name: str, way: str, folder: Path, tied: bool = False) -> Any:
    """Their model, saved in `theirs` in shards; beside it a run's `w.safetensors`, `kept`, name map, `data.npz`."""
    model = theirs_of(name, tied).eval()
    if way == "import":
        # Their rotary angles are of float32, which large weights bring out.
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(0.2 if parameter.dim() > 1 else 1.0)
    model.save_pretrained(folder / "theirs", max_shard_size="24KB")
    (folder / "theirs" / "tokenizer.json").write_text('{"a": 1}')
    batches(folder)
    if way == "import":
        (folder / "net.py").write_text(FACTORY)
        import_ = ["import", "net.py:build", "-o", "net.shard", "--weights", "net.safetensors", "--accept", "SH608"]
        shardc(folder, *import_, "--output", "logits")
        program = (folder / "net.shard").read_text()
        kind = type(model).__name__
        (folder / "run.shard").write_text(program + IMPORTED.format(model=f"{kind}()"))
    else:
        text = text_of(name, "f32", ADAMW).replace("steps = 5", 'steps = 3\n  checkpoint = every(2, to = "kept")')
        text = text.replace("rope = 10000.0)", "rope = 10000.0, tied = true)") if tied else text
        (folder / "run.shard").write_text(text.replace("w.safetensors", "theirs/model-*.safetensors"))
    shardc(folder, "run", "run.shard", "--ranks", "2", "--strategy", "dp", "--save-weights", "w.safetensors")
    return model


def logits(folder: Path) -> Tensor:
    """Ours after training, of all examples."""
    words = ["--ranks", "1", "--strategy", "dp", "--checkpoint", "kept", "--value", "logits", "--out", "logits.npz"]
    shardc(folder, "predict", "run.shard", *words)
    return torch.from_numpy(np.load(folder / "logits.npz")["logits"])


def tokens(folder: Path) -> Tensor:
    return torch.from_numpy(np.load(folder / "data.npz")["tokens"])


def loaded(kind: Any, folder: Path) -> Any:
    """`from_pretrained`, with no key missing or unexpected."""
    model, info = kind.from_pretrained(folder, output_loading_info=True)
    assert not any(info.values()), info
    return model.eval()


def saved(folder: Path) -> dict[str, Tensor]:
    """All tensors of the files that a folder's index names, or of its one file."""
    index = folder / "model.safetensors.index.json"
    names = set(json.loads(index.read_text())["weight_map"].values()) if index.exists() else {"model.safetensors"}
    assert {path.name for path in folder.glob("*.safetensors")} == names
    return {name: tensor for file in names for name, tensor in load_file(folder / file).items()}
