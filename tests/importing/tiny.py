"""A name of an architecture of `transformers` -> a tiny model of it with random weights and example tensors."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import re
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers.models.auto import configuration_auto, modeling_auto

# The heads that an architecture is built with: the first mapping that has it.
HEADS = ("MASKED_LM", "CAUSAL_LM", "SEQ_TO_SEQ_CAUSAL_LM", "IMAGE_CLASSIFICATION", "CTC")
# Fields of configurations with the number of features of each frame of speech.
FEATURES = ("num_mel_bins", "feature_projection_input_dim", "feature_size", "input_dim")
LARGEST = 20_000_000

# Fields of configurations, by the first pattern that fits the whole name: their numbers in a tiny model.
FIELDS: tuple[tuple[str, int], ...] = (
    (r"first_k_dense_replace|num_dense_layers|num_nextn_predict_layers|num_mtp.*", 1),
    (r"(num_|n_)?(hidden_|encoder_|decoder_|text_|vision_)?layers?|num_(encoder|decoder)_layers|depth|n_layer", 2),
    (r"(num_|n_)(kv|key_value)_heads?|(multi_query|num)_group(s|_num)|num_key_value_(attention_)?heads", 2),
    (r"(num_|n_)?((encoder|decoder|text|vision)_)?(attention_)?(self_attention_)?heads?|num_attention_heads", 4),
    (r"(attention_)?head_dim|kv_channels|d_kv|(qk_nope|v)_head_dim|d_key|d_value|global_head_dim", 8),
    (r"qk_rope_head_dim", 8), (r"rotary_dim", 4),
    (r"hidden_size|d_model|n_embd|dim|embed_dim|hidden_dim|model_dim|emb_dim|word_embed_proj_dim|embedding_size", 32),
    (r"q_lora_rank|kv_lora_rank|lora_rank", 16),
    (r"(moe_|shared_expert_|dense_)?(intermediate|ffn_hidden)_(size|dim)|(encoder_|decoder_)?ffn_dim|d_ff|n_inner", 48),
    (r"intermediate_size_mlp|feed_?forward_(size|dim)|mlp_hidden_size|ffn_hidden_size", 48),
    (r"(moe_)?(num_|n_)?(local_|routed_)?experts|moe_num_experts|num_experts|n_routed_experts|expert_num", 4),
    (r"num_experts_per_tok|(moe_)?top_?k|moe_k|num_experts_per_token|experts_per_token|num_selected_experts", 2),
    (r"n_shared_experts|num_shared_experts|n_group|topk_group|moe_num_shared_experts", 1),
    (r"vocab_size(_per_layer_input)?|tgt_vocab_size|src_vocab_size|trg_vocab_size", 64),
    (r"max_position_embeddings|n_positions|max_(source|target)_positions|n_ctx|max_seq_len|seq_length|max_len", 64),
    (r"bos_token_id|cls_token_id|decoder_start_token_id", 1), (r"eos_token_id|sep_token_id", 2), (r"pad_token_id", 0),
    (r"image_size", 64), (r"patch_size", 8), (r"num_mel_bins", 16), (r"(d_)?state_size|d_state|ssm_state_size", 8),
    (r"(mamba_)?n_groups|mamba_n_groups", 1), (r"sliding_window|attention_window_size|local_attention", 4),
    (r"keep_window_size|index_topk", 4),
)  # fmt: skip

# Fields of configurations by their `model_type`, where the numbers above do not fit each other or are not all.
_SPEECH = {"conv_dim": (32,) * 7, "mask_time_length": 2, "mask_feature_length": 2}
_STAGES = {"hidden_sizes": (16, 32, 48, 64), "depths": (1, 1, 2, 1)}
_PATCHES = {**_STAGES, "patch_size": 4}
_WINDOWS = {"depths": (2, 2), "num_heads": (2, 4)}
_ROTARY = {kind: {"rope_type": "default", "rope_theta": 1e4} for kind in ("full_attention", "sliding_attention")}
_MAMBA = {"mamba_n_heads": 8}
_BRANCH = {"depths": (1, 1, 1, 1, 1, 1, 2), "num_filters": 2}
GIVEN: dict[str, dict[str, Any]] = {
    "bamba": {**_MAMBA, "attn_layer_indices": [1]}, "bit": _STAGES, "blt": {"encoder_hash_byte_group_vocab": 64},
    "blt_local_encoder": {"hidden_size_global": 32}, "blt_local_decoder": {"hidden_size_global": 32},
    "cohere_compass_text": {"rope_parameters": _ROTARY},
    "convnext": _PATCHES, "convnextv2": _PATCHES, "data2vec-audio": _SPEECH,
    "dbrx": {"attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8.0},
             "ffn_config": {"moe_num_experts": 4}},
    "donut-swin": _WINDOWS, "efficientnet": {"width_coefficient": 0.25, "depth_coefficient": 0.4, "hidden_dim": 320},
    "gemma3n_text": {"num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2,
                     "num_kv_shared_layers": 2},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "granite_speech5_encoder": {"context_size": 16}, "hubert": _SPEECH,
    "granitemoehybrid": {**_MAMBA, "layer_types": ["mamba", "attention"]},
    "lasr_encoder": {"subsampling_conv_channels": 8}, "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "longcat_flash": {"expert_ffn_hidden_size": 16, "zero_expert_num": 2, "moe_topk": 2},
    "luke": {"entity_vocab_size": 64, "entity_emb_size": 16}, "mamba2": {"num_heads": 8},
    "musicgen_decoder": {"num_codebooks": 2}, "musicgen_melody_decoder": {"num_codebooks": 2},
    "neomme": {"head_dim": 16}, "parakeet_encoder": {"subsampling_conv_channels": 8},
    "perceiver": {"num_latents": 8, "d_latents": 32, "num_self_attends_per_block": 2},
    "reformer": {"axial_pos_embds_dim": (16, 16), "axial_pos_shape": (2, 3), "local_attn_chunk_length": 3,
                 "lsh_attn_chunk_length": 3, "attention_head_size": 8},
    "resnet": _STAGES, "sew": {**_SPEECH, "conv_dim": (32,) * 13},
    "sew-d": {**_SPEECH, "conv_dim": (32,) * 13}, "swin": _WINDOWS,
    "swinv2": {**_WINDOWS, "pretrained_window_sizes": (0, 0)}, "unispeech": _SPEECH, "unispeech-sat": _SPEECH,
    "vibevoice_acoustic_tokenizer_encoder": _BRANCH, "wav2vec2": _SPEECH, "wav2vec2-bert": _SPEECH,
    "wav2vec2-conformer": _SPEECH, "wavlm": _SPEECH, "xmod": {"default_language": "en_XX"},
    "zamba": {"num_hidden_layers": 4, "layers_block_type": ["mamba", "hybrid"] * 2},
    "zamba2": {"layers_block_type": ["mamba", "hybrid"]},
    "zaya": {"num_experts_per_tok": 1},
}  # fmt: skip


# By architecture, the configuration and the example tensors with which it was built.
_BUILT: dict[str, tuple[Any, dict[str, Tensor]]] = {}


def names() -> list[str]:
    """All architectures that have one of the heads."""
    return sorted({name for head in HEADS for name in _classes(head)} & set(configuration_auto.CONFIG_MAPPING_NAMES))


def _classes(head: str) -> dict[str, Any]:
    return dict(getattr(modeling_auto, f"MODEL_FOR_{head}_MAPPING_NAMES"))


def built(name: str) -> tuple[nn.Module, dict[str, Tensor]]:
    """The model and its example tensors. ValueError where no tiny configuration gives one."""
    head = next(head for head in HEADS if name in _classes(head))
    kind = _classes(head)[name]
    model = getattr(transformers, kind if isinstance(kind, str) else kind[0])
    reasons = []
    if name in _BUILT:  # the factory of an import is called again and again
        config, inputs = _BUILT[name]
        return model(copy.deepcopy(config)), {key: each.clone() for key, each in inputs.items()}
    # Fields that have no usual number are set where nothing comes out without.
    for patterns, unset in ((FIELDS, False), (FIELDS, True), (_reduced(1), False), (_reduced(2), False)):
        try:
            config = _config(model.config_class or configuration_auto.CONFIG_MAPPING[name], patterns, unset)
            with torch.device("meta"):
                count = sum(each.numel() for each in model(config).parameters())
            if count > LARGEST:
                raise ValueError(f"{count} parameters")
            net = model(config)
            inputs = _inputs(net, head, config)
            net.train()
            with torch.no_grad():
                net(**inputs)
        except Exception as error:
            reasons.append(f"{type(error).__name__}: {' '.join(str(error).split())[:200]}")
            continue
        _BUILT[name] = (copy.deepcopy(config), inputs)
        return net, inputs
    raise ValueError("; ".join(dict.fromkeys(reasons)))


def _reduced(step: int) -> tuple[tuple[str, int], ...]:
    """Fewer fields: sizes that fit each other only in their defaults."""
    return FIELDS[:2] + (FIELDS[13:15] if step == 1 else ())


def _config(kind: Any, patterns: tuple[tuple[str, int], ...], unset: bool) -> Any:
    """A configuration of a class with the numbers of the patterns, in those inside it too. unset: also where its
    own number is None."""
    given: dict[str, Any] = {}
    for name, usual in _defaults(kind).items():
        found = next((value for pattern, value in patterns if re.fullmatch(pattern, name)), None)
        if found is not None and (isinstance(usual, int) or (usual is None and (unset or "token_id" in name))):
            given[name] = False if isinstance(usual, bool) else found
    if "kv_lora_rank" in given and "num_key_value_heads" in given:
        given["num_key_value_heads"] = given["num_attention_heads"]
    given |= GIVEN.get(getattr(kind, "model_type", ""), {})
    for name, inner in _inner(kind).items():
        given[name] = {**_config(inner, patterns, unset).to_dict(), **given.get(name, {})}
    config = kind(**given)
    config._experts_implementation = "batched_mm"
    if hasattr(config, "use_cache"):
        config.use_cache = False
    return config


def _inner(kind: Any) -> dict[str, Any]:
    """The classes of the configurations inside one; where it leaves them open, those that it takes itself."""
    found = dict(getattr(kind, "sub_configs", {}))
    open_ = [name for name, inner in found.items() if not getattr(inner, "model_type", "")]
    try:
        usual = kind() if open_ else None
    except Exception:
        usual = None
    found |= {name: type(getattr(usual, name, None)) for name in open_}
    return {name: inner for name, inner in found.items() if issubclass(inner, transformers.PretrainedConfig)}


def _defaults(kind: Any) -> dict[str, Any]:
    if dataclasses.is_dataclass(kind):
        return {field.name: field.default for field in dataclasses.fields(kind)}
    return {name: each.default for name, each in inspect.signature(kind.__init__).parameters.items()}


def _inputs(net: Any, head: str, config: Any) -> dict[str, Tensor]:
    main = net.main_input_name
    text = config.get_text_config()
    ids = torch.randint(3, min(text.vocab_size, 60), (2, 6)) if hasattr(text, "vocab_size") else None
    if main == "pixel_values":
        size = getattr(config, "image_size", 64)
        if not hasattr(config, "image_size") and hasattr(config, "vision_config"):
            size = config.vision_config.image_size
        wide = size if isinstance(size, (list, tuple)) else (size, size)
        return {main: torch.rand(2, getattr(config, "num_channels", 3), *wide)}
    if main == "input_values":
        return {main: torch.rand(2, 2000)}
    if main == "input_features":
        part = getattr(config, "encoder_config", config)
        bins = next((getattr(part, each) for each in FEATURES if hasattr(part, each)), 80)
        frames = 2 * getattr(config, "max_source_positions", 32)
        shape = (2, bins, frames) if head == "SEQ_TO_SEQ_CAUSAL_LM" else (2, frames, bins)
        return {main: torch.rand(shape), **({"decoder_input_ids": ids} if head == "SEQ_TO_SEQ_CAUSAL_LM" else {})}
    assert ids is not None
    return {"input_ids": ids, **({"decoder_input_ids": ids[:, :5].clone()} if net.config.is_encoder_decoder else {})}
