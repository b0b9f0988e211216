"""staged.shard, strategy `looped`, on 4 ranks.

Written by shardc from the program and its strategy. Each pipeline stage has its own file;
this one has the parameters, the data and the order in which the stages work. Run it with

    torchrun --nproc-per-node 4 main.py
"""

from shardlang import runtime as rt

import stage0
import stage1
import stage2
import stage3
import torch
from mesh import mesh

parameters = [
    rt.Parameter("embed.weight", (16, 8), ("kaiming_uniform", 8.0), reduce="dp"),
    rt.Parameter("embed.bias", (16,), ("uniform", -0.3535533905932738, 0.3535533905932738), reduce="dp"),
    rt.Parameter("middle.weight", (16, 16), ("kaiming_uniform", 16.0), reduce="dp"),
    rt.Parameter("middle.bias", (16,), ("uniform", -0.25, 0.25), reduce="dp"),
    rt.Parameter("last.weight", (16, 16), ("kaiming_uniform", 16.0), reduce="dp"),
    rt.Parameter("last.bias", (16,), ("uniform", -0.25, 0.25), reduce="dp"),
    rt.Parameter("head.weight", (12, 16), ("kaiming_uniform", 16.0), reduce="dp"),
    rt.Parameter("head.bias", (12,), ("uniform", -0.25, 0.25), reduce="dp"),
]


def finish(totals):
    loss = totals["loss:1"][0] / totals["loss:1"][1]
    accuracy = totals["accuracy:1"][0] / totals["accuracy:1"][1]

    # staged.shard:99  metric perplexity = exp(loss)
    perplexity = torch.exp(loss)

    return {"loss": loss, "perplexity": perplexity, "accuracy": accuracy}


received = [
    rt.Received("f64", (16, 8, 16), cut={0: ("microbatch", "dp")}, gradient=True),
]

stages = [
    rt.Stage(stage0.forward, parameters=("embed",), fields=("x",), evaluate=stage0.evaluate),
    rt.Stage(stage1.forward, parameters=("middle",), receives=received, evaluate=stage1.evaluate),
    rt.Stage(
        stage2.forward,
        parameters=("last",),
        receives=[
            rt.Received("f64", (16, 8, 16), cut={0: ("microbatch", "dp")}, gradient=True),
            rt.Received("f64", (16, 8, 16), cut={0: ("microbatch", "dp")}, gradient=True),
        ],
        evaluate=stage2.evaluate,
    ),
    rt.Stage(
        stage3.forward, parameters=("head",), receives=received, fields=("label",), evaluate=stage3.evaluate,
        before_microbatch=stage3.before_microbatch, before_step=stage3.before_step, conclude=stage3.conclude,
    ),
]

# interleaved_1f1b: 0F2 is stage 0, forward, microbatch 2; X*3 is X three times, each one microbatch further
schedule = rt.Schedule(
    axis="pp", coordinates=(0, 1, 0, 1),
    actions=[
        "0F0 0F1 2F0 2F1 (0F2 2B0)*2 (2F2 0B0)*2 2B2 2B3 0B2 0B3",
        "1F0 1F1 (3F0 3B0)*2 (1F2 1B0)*2 (3F2 3B2)*2 1B2 1B3",
    ],
)

program = rt.Program(
    name="staged.shard", strategy="looped", ranks=4,
    mesh=mesh, groups=(("dp",),), seed=0,
    parameters=parameters,
    data=rt.Source(
        "random", batch=16, batches=4,
        fields=[
            rt.Field("x", "f64", (16, 8, 8), cut={0: ("microbatch", "dp")}),
            rt.Field("label", "i64", (16, 8), cut={0: ("microbatch", "dp")}, bound=12),
        ],
    ),
    eval=rt.Source(
        "random", batch=16, batches=2,
        fields=[
            rt.Field("x", "f64", (16, 8, 8), cut={0: ("microbatch", "dp")}),
            rt.Field("label", "i64", (16, 8), cut={0: ("microbatch", "dp")}, bound=12),
        ],
    ),
    optimizers=[
        rt.Optimizer("adamw", lr=0.01, betas=(0.9, 0.999), eps=1e-08, weight_decay=0.01),
    ],
    stages=stages, pipeline=schedule, loss_pending=("dp", "microbatch"),
    metrics_pending={"perplexity": (), "accuracy": ("dp", "microbatch")},
    finish=finish, eval_pending={"loss:1": ("dp", "microbatch"), "accuracy:1": ("dp", "microbatch")},
    epochs=2, bucket_bytes=25_000_000,
    clip=0.5,
    precision="f64",
)

if __name__ == "__main__":
    rt.main(program)
