"""Models of the `transformers` library by configuration, with random weights: imported whole."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from shardlang.importing.imported import Wanted, import_module
from tests.importing.modules import Example
from tests.importing.test_import import EXACT

transformers = pytest.importorskip("transformers", reason="the library transformers is not installed")

SIZES = {"num_hidden_layers": 2, "hidden_size": 16, "num_attention_heads": 4, "vocab_size": 50}
IDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None}
ATTENTION = """\
model GPT2Attention(d: dim, heads: dim, head_dim: dim) {
  layer query = Linear(d, heads * head_dim, std = 0.02)
  layer key = Linear(d, heads * head_dim, std = 0.02)
  layer value = Linear(d, heads * head_dim, std = 0.02)
  layer c_proj = Linear(heads * head_dim, d, std = 0.01)

  forward(x: [batch, seq, d]) -> [batch, seq, d] {
    q = rearrange(query(x) -> [batch, heads, seq, head_dim])
    k = rearrange(key(x) -> [batch, heads, seq, head_dim])
    v = rearrange(value(x) -> [batch, heads, seq, head_dim])
    mixed = attention(q, k, v, causal = true, p = 0.1)
    return dropout(c_proj(rearrange(mixed -> [batch, seq, heads * head_dim])), p = 0.1)
  }
}
"""


def gpt2() -> Example:
    sizes = {"n_layer": 2, "n_embd": 16, "n_head": 2, "vocab_size": 50, "n_positions": 32}
    config = transformers.GPT2Config(**sizes, use_cache=False, **IDS)
    return transformers.GPT2LMHeadModel(config), {"input_ids": torch.randint(0, 50, (2, 6))}


def llama() -> Example:
    config = transformers.LlamaConfig(**SIZES, intermediate_size=40, num_key_value_heads=2, use_cache=False, **IDS)
    return transformers.LlamaForCausalLM(config), {"input_ids": torch.randint(0, 50, (2, 6))}


def bert() -> Example:
    config = transformers.BertConfig(**SIZES, intermediate_size=40, max_position_embeddings=64, **IDS)
    return transformers.BertForMaskedLM(config), {"input_ids": torch.randint(0, 50, (2, 6))}


def vit() -> Example:
    sizes = {name: size for name, size in SIZES.items() if name != "vocab_size"}
    config = transformers.ViTConfig(**sizes, intermediate_size=40, image_size=16, patch_size=4, num_labels=7)
    return transformers.ViTForImageClassification(config), {"pixel_values": torch.rand(2, 3, 16, 16)}


def mistral() -> Example:
    sizes = {"intermediate_size": 40, "num_key_value_heads": 2, "sliding_window": 4}
    config = transformers.MistralConfig(**SIZES, **sizes, use_cache=False, **IDS)
    return transformers.MistralForCausalLM(config), {"input_ids": torch.randint(0, 50, (2, 6))}


def t5() -> Example:
    sizes = {"num_layers": 2, "d_model": 16, "num_heads": 2, "d_kv": 8, "d_ff": 40, "vocab_size": 50}
    config = transformers.T5Config(**sizes, use_cache=False, decoder_start_token_id=0)
    ids = {name: torch.randint(0, 50, (2, size)) for name, size in (("input_ids", 6), ("decoder_input_ids", 5))}
    return transformers.T5ForConditionalGeneration(config), ids


def roberta() -> Example:
    config = transformers.RobertaConfig(**SIZES, intermediate_size=40, max_position_embeddings=64, pad_token_id=1)
    return transformers.RobertaForMaskedLM(config), {"input_ids": torch.randint(2, 50, (2, 6))}


PARTS = {
    gpt2: [ATTENTION, "layer h[2] = GPT2Block(d, heads, head_dim, ffn)", 'gelu(approximate = "tanh")'],
    llama: ["rotary(query_states, over = head_dim, along = seq)", "layer layers[2] = LlamaDecoderLayer(d, heads"],
    bert: ["attention(query_layer, key_layer, value_layer, p = 0.1)", "position_embeddings(arange(seq))"],
    mistral: [", causal = true, window = 4)"],
    t5: ["dim key = seq", "log(", "relative_attention_bias(", "attention(query_states, key_states, value_states, bias"],
    roberta: ["cumsum(", "attention("],
    vit: ["layer layers[2] = ViTLayer(", "expand(cls_token -> [batch, 1, "],
}


@pytest.mark.parametrize("factory", PARTS, ids=lambda factory: factory.__name__)
def test_a_model_of_the_library_is_imported_whole(factory: Callable[[], Example]) -> None:
    found = import_module(factory, Wanted(f"theirs:{factory.__name__}", {}))
    assert found.report["largest difference"] <= EXACT
    assert [part for part in PARTS[factory] if part not in found.text] == []
