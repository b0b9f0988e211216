"""How systems that were measured do the work of a plan: the rules of each, for the published rows alone.

    machine_of(row) -> Machine   hardware and system

The work is our plan's (`published_work`), its seconds are those of `shardlang.cost`. Only what a
system does differently from our emitted program is said here, each rule with its source:

N21  Narayanan et al. 2021, Efficient Large-Scale Language Model Training on GPU Clusters (Megatron-LM v2)
K22  Korthikanti et al. 2022, Reducing Activation Recomputation in Large Transformer Models (Megatron-LM v3)
L3   The Llama 3 Herd of Models, 2024, section 3.3
TT   torchtitan, docs and benchmarks of December 2024
MF   llm-foundry, scripts/train/benchmarking: MPT by FSDP, precision PURE (parameters and sums in bf16)
VT   vTrain (Bang et al. 2023): Megatron-DeepSpeed, 8 A100 a node
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from published_rows import Row

from shardlang.cost.hardware import Hardware, Shares
from shardlang.cost.overlap import Overlap

# Bytes an element (of the largest tensor) that kernels read and write, forward and backward, where a
# system's differ from one kernel for each operator. With 16-bit activations.
# bias + GeLU, and bias + dropout + residual, are one kernel each (N21 section 4.2, "operator fusion");
# the dropout keeps a mask of a byte; the vocabulary-parallel loss makes f32 of its scores, then goes
# over them for the maximum, the difference, the exponential and the sum (megatron/mpu/cross_entropy.py).
MEGATRON = {
    "add": (0, None), "gelu": (4, 8), "dropout": (7, 7), "layer_norm": (4, 6), "cast": (0, 0),
    "cross_entropy": (40, 12),
}  # fmt: skip
# torch.compile makes one kernel of what lies between two products, with the norm that reads it.
COMPILED = {
    "add": (0, None), "rms_norm": (8, 10), "silu": (0, 0), "mul": (6, 10), "rotary": (4, 4), "cast": (0, 0),
    "cross_entropy": (8, 12),
}  # fmt: skip
# Eager kernels, one for each operator; the loss is one (MF yamls: loss_fn fused_crossentropy), and two
# metrics of training go over the scores again (llm-foundry, use_train_metrics).
EAGER = {"cast": (0, 0), "layer_norm": (4, 6), "cross_entropy": (12, 4)}


@dataclass(frozen=True)
class System:
    """What a system does with a step, and when (`overlap`).

    kernels: operator -> bytes an element, of which None are those of our plan. joined: projections
    that are one product. flash: attention is one kernel, else products with the scores in memory.
    by_layer: gradients are summed a layer at a time, else all at once. gradient: bytes of an
    element when it is summed over data-parallel ranks; accumulation: read and written to add that
    of a microbatch; optimizer: of all that follows the sum. one_layer_chunks: stages are
    interleaved layer by layer. hidden_transfers: a stage computes while it sends. stops_early: what
    is computed again ends with the last tensor that backward needs (torch.utils.checkpoint with
    use_reentrant = False)."""

    name: str
    kernels: Mapping[str, tuple[float, float | None]]
    overlap: Overlap
    joined: tuple[tuple[str, ...], ...] = (("q", "k", "v"),)
    flash: bool = False
    by_layer: bool = False
    gradient: int = 4
    accumulation: int = 10
    optimizer: int = 60
    one_layer_chunks: bool = False
    hidden_transfers: bool = False
    stops_early: bool = False


# Nothing runs beside compute (N21): collectives of tensor parallelism are in line, gradients are summed
# when all are there. K22's code sums the gradient of a product's input beside that of its weight
# (megatron/core/tensor_parallel/layers.py, LinearWithGradAccumulationAndAsyncCommunication).
IN_LINE = Overlap(ahead=0, dual=False, one_sum=False, copies=False)
BESIDE_WEIGHTS = dataclasses.replace(IN_LINE, dual=True)
# L3 3.3.2: sums of gradients, and parameters that come for the next step, are asynchronous.
ASYNCHRONOUS = dataclasses.replace(IN_LINE, published=False)
# FSDP brings the parameters of one layer ahead, and sums those of one behind; version 2 copies them into
# and out of what is sent, version 1 has them flat.
FSDP = Overlap(ahead=1, dual=False, one_sum=False, copies=False)
FSDP_2 = dataclasses.replace(FSDP, copies=True)

# Gradients are summed in f32: --accumulate-allreduce-grads-in-fp32 is on with bf16 (megatron/arguments.py),
# and DeepSpeed's BF16_Optimizer does alike. Adding a microbatch's reads 2 + 4 bytes and writes 4; K22's
# code adds within the product (--gradient-accumulation-fusion). Then: unscale and check (8), norm (4),
# clip (8), Adam (28), copy to 16 bits (6), zeros (4 + 2): 60 bytes an element.
N21 = System("Megatron 2021", MEGATRON, IN_LINE)
K22 = System("Megatron 2022", MEGATRON, BESIDE_WEIGHTS, accumulation=0)
VT = System("Megatron-DeepSpeed", MEGATRON, IN_LINE)
# Chunks are of one layer: the first stage's first has only the embedding, the last stage's last only the
# head, and sends are asynchronous (L3, 3.3.2).
L3 = System("Llama 3", COMPILED, ASYNCHRONOUS, flash=True, by_layer=True, one_layer_chunks=True, hidden_transfers=True)
# FSDP2 sums in f32 (mixed_precision_reduce). Fused AdamW reads and writes 28 bytes, the clip 12.
TT = System("torchtitan", COMPILED, FSDP_2, joined=(), flash=True, by_layer=True, accumulation=0, optimizer=40,
            stops_early=True)  # fmt: skip
# DecoupledAdamW goes through its parameters in eager steps: 88 bytes (composer/optim), the clip 12.
MF = System("llm-foundry", EAGER, FSDP, flash=True, by_layer=True, gradient=2, accumulation=0, optimizer=100,
            stops_early=True)  # fmt: skip

# A100 SXM 80 GB: 312 TFLOP/s, 2039 GB/s, NVLink 600 GB/s both ways, 108 multiprocessors, HDR for each.
# H100 SXM: 989 TFLOP/s, 3350 GB/s, 900 GB/s, 132, 400 Gb/s. (NVIDIA's data sheets.)
# beside: NCCL takes up to 32 of a device's 108 or 132 multiprocessors (its limit of channels), so what
# it leaves is slower by about 1.3, which the rows of FSDP bear out.
A100 = Hardware("a100", compute=312e12, compute_f32=19.5e12, bandwidth=2039e9, link=300e9, devices=8, network=25e9,
                units=108, shares=Shares(beside=1.3))  # fmt: skip
H100 = Hardware("h100", compute=989e12, compute_f32=67e12, bandwidth=3350e9, link=450e9, devices=8, network=50e9,
                units=132, shares=Shares(beside=1.3))  # fmt: skip
# FlashAttention-2 reaches about 35 % of an H100's peak forward and 28 % backward (Shah et al. 2024,
# FlashAttention-3, figures 5 and 6). MPT's default, in Triton (submit_benchmarks.py, attn_impl), is
# slower by 1.3 to 2.5 (Dao 2023, section 4.1), here 1.4 forward, 1.6 backward. Llama 3's is not named.
FLASH_2 = dataclasses.replace(H100.shares, attention=0.35, attention_backward=0.28)
TRITON = dataclasses.replace(H100.shares, attention=0.35 / 1.4, attention_backward=0.28 / 1.6)


@dataclass(frozen=True)
class Machine:
    hardware: Hardware
    system: System


MACHINES = {
    "selene": Machine(A100, K22),
    "selene N21": Machine(A100, N21),
    "meta": Machine(H100, L3),
    # 96 GB of HBM2e at 2.4 TB/s (TT); power of 500 W is in the constant.
    "titan_h100": Machine(dataclasses.replace(H100, bandwidth=2400e9, shares=FLASH_2), TT),
    "titan_a100": Machine(A100, TT),
    "mosaic_h100": Machine(dataclasses.replace(H100, shares=TRITON), MF),
    # Half an HDR port for each device: a tensor-parallel axis of 16, over two nodes, shows it (VT-022).
    "vtrain": Machine(dataclasses.replace(A100, network=12.5e9), VT),
}


def machine_of(row: Row) -> Machine:
    """Its hardware and system; the rows of 2021 ran on the same machine as those of 2022."""
    name = f"{row.machine} {row.id[:3]}"
    if name not in MACHINES and row.machine not in MACHINES:
        raise SystemExit(f"{row.id}: no machine `{row.machine}` is known; there are {', '.join(MACHINES)}")
    return MACHINES.get(name) or MACHINES[row.machine]
