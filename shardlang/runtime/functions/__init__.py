"""The tensor functions of operators' emitted text: with collectives, masks or random numbers."""

from shardlang.runtime.functions.attention import attention
from shardlang.runtime.functions.context import even_attention, ring_attention
from shardlang.runtime.functions.declared import Declared, Members
from shardlang.runtime.functions.images import (
    adaptive_avg_pool1d,
    adaptive_avg_pool2d,
    avg_pool1d,
    avg_pool2d,
    conv1d,
    conv2d,
    conv_transpose1d,
    conv_transpose2d,
    group_norm,
    interpolate,
    max_pool1d,
    max_pool2d,
)
from shardlang.runtime.functions.indices import within
from shardlang.runtime.functions.lookups import (
    arange,
    embedding,
    gather,
    number,
    one_hot,
    pick,
    rand,
    randn,
    take,
    top_k,
    without_gradient,
)
from shardlang.runtime.functions.losses import chunked_cross_entropy, cross_entropy, cross_entropy_in_f32, nll_loss
from shardlang.runtime.functions.masks import dropout, dropout2d
from shardlang.runtime.functions.normalisations import (
    batch_norm,
    batch_norm_eval,
    layer_norm,
    log_softmax,
    rms_norm,
    softmax,
)
from shardlang.runtime.functions.products import overlapped_linear
from shardlang.runtime.functions.rotary import rotary
from shardlang.runtime.functions.statistics import amax, amin, argmax, auc, count, logsumexp, tally, var

__all__ = [
    "Declared", "Members", "adaptive_avg_pool1d", "adaptive_avg_pool2d", "amax", "amin", "arange", "argmax",
    "attention", "auc", "avg_pool1d", "avg_pool2d", "batch_norm", "batch_norm_eval", "chunked_cross_entropy", "conv1d",
    "conv2d", "conv_transpose1d", "conv_transpose2d", "count", "cross_entropy", "cross_entropy_in_f32", "dropout",
    "dropout2d", "embedding", "even_attention", "gather", "group_norm", "interpolate", "layer_norm", "log_softmax",
    "logsumexp", "max_pool1d", "max_pool2d", "nll_loss", "number", "one_hot", "overlapped_linear", "pick", "rand",
    "randn", "ring_attention", "rms_norm", "rotary", "softmax", "take", "tally", "top_k", "var", "within",
    "without_gradient",
]  # fmt: skip
