"""Tiny models of `transformers` with random weights, by the name of a test: with the library's dropout, or without."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch import Tensor, nn

Example = tuple[nn.Module, dict[str, Tensor]]
BATCH = 4
SIZES = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 8, "intermediate_size": 80}
WORDS = {**SIZES, "vocab_size": 50}
IDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None}
STILL = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def ids(seq: int = 6, first: int = 0) -> Tensor:
    return torch.randint(first, 50, (BATCH, seq))


def gpt2(dropout: bool = True, **more: Any) -> Example:
    sizes = {"n_layer": 2, "n_embd": 32, "n_head": 8, "vocab_size": 50, "n_positions": 32}
    still = {} if dropout else {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    config = transformers.GPT2Config(**sizes, **still, use_cache=False, **IDS, **more)
    return transformers.GPT2LMHeadModel(config), {"input_ids": ids()}


def _decoder(kind: str, **more: Any) -> Example:
    config = getattr(transformers, f"{kind}Config")(**WORDS, num_key_value_heads=4, use_cache=False, **IDS, **more)
    return getattr(transformers, f"{kind}ForCausalLM")(config), {"input_ids": ids()}


def llama(dropout: bool = True) -> Example:
    return _decoder("Llama")


def qwen3(dropout: bool = True) -> Example:
    return _decoder("Qwen3", head_dim=8, tie_word_embeddings=True)


def mistral(dropout: bool = True) -> Example:
    return _decoder("Mistral", sliding_window=4)


def bert(dropout: bool = True) -> Example:
    config = transformers.BertConfig(**WORDS, max_position_embeddings=64, **IDS, **({} if dropout else STILL))
    return transformers.BertForMaskedLM(config), {"input_ids": ids()}


def roberta(dropout: bool = True) -> Example:
    still = {} if dropout else STILL
    config = transformers.RobertaConfig(**WORDS, max_position_embeddings=64, pad_token_id=1, **still)
    return transformers.RobertaForMaskedLM(config), {"input_ids": ids(first=2)}


def t5(dropout: bool = True) -> Example:
    sizes = {"num_layers": 2, "d_model": 24, "num_heads": 4, "d_kv": 8, "d_ff": 40, "vocab_size": 50}
    still = {} if dropout else {"dropout_rate": 0.0}
    config = transformers.T5Config(**sizes, **still, use_cache=False, decoder_start_token_id=0)
    return transformers.T5ForConditionalGeneration(config), {"input_ids": ids(), "decoder_input_ids": ids(5)}


def vit(dropout: bool = True) -> Example:
    config = transformers.ViTConfig(**SIZES, image_size=16, patch_size=4, num_labels=7)
    return transformers.ViTForImageClassification(config), {"pixel_values": torch.rand(BATCH, 3, 16, 16)}


def clip(dropout: bool = True) -> Example:
    text = {**WORDS, "max_position_embeddings": 32, **IDS, "eos_token_id": 49}
    vision = {**SIZES, "image_size": 16, "patch_size": 4}
    config = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=12)
    return transformers.CLIPModel(config), {"input_ids": ids(), "pixel_values": torch.rand(BATCH, 3, 16, 16)}


def whisper(dropout: bool = True) -> Example:
    sizes = {"d_model": 16, "encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 40}
    config = transformers.WhisperConfig(**sizes, num_mel_bins=10, max_source_positions=12)
    encoder = transformers.models.whisper.modeling_whisper.WhisperEncoder(config)
    return encoder, {"input_features": torch.rand(BATCH, 10, 24)}
