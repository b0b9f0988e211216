"""staged.shard, strategy `recomputed`, on 8 ranks.

Written by shardc from the program and its strategy. Each pipeline stage has its own file;
this one has the parameters, the data and the order in which the stages work. Run it with

    torchrun --nproc-per-node 8 main.py
"""

from shardlang import runtime as rt

import stage0
import stage1
import torch
from mesh import mesh

parameters = [
    rt.Parameter("embed.weight", (16, 8), ("kaiming_uniform", 8.0), reduce=("dp", "mp"), zero=(3, "dp")),
    rt.Parameter("embed.bias", (16,), ("uniform", -0.3535533905932738, 0.3535533905932738),
                 reduce=("dp", "mp"), zero=(3, "dp")),
    rt.Parameter("middle.weight", (16, 16), ("kaiming_uniform", 16.0), reduce=("dp", "mp"), zero=(3, "dp")),
    rt.Parameter("middle.bias", (16,), ("uniform", -0.25, 0.25), reduce=("dp", "mp"), zero=(3, "dp")),
    rt.Parameter("last.weight", (16, 16), ("kaiming_uniform", 16.0), reduce=("dp", "mp"), zero=(3, "dp")),
    rt.Parameter("last.bias", (16,), ("uniform", -0.25, 0.25), reduce=("dp", "mp"), zero=(3, "dp")),
    rt.Parameter("head.weight", (12, 16), ("kaiming_uniform", 16.0), reduce=("dp", "mp"), zero=(3, "dp")),
    rt.Parameter("head.bias", (12,), ("uniform", -0.25, 0.25), reduce=("dp", "mp"), zero=(3, "dp")),
]


def finish(totals):
    loss = totals["loss:1"][0] / totals["loss:1"][1]
    accuracy = totals["accuracy:1"][0] / totals["accuracy:1"][1]

    # staged.shard:99  metric perplexity = exp(loss)
    perplexity = torch.exp(loss)

    return {"loss": loss, "perplexity": perplexity, "accuracy": accuracy}


stages = [
    rt.Stage(
        stage0.forward, parameters=("embed", "middle"), fields=("x",), evaluate=stage0.evaluate,
        gathers=rt.Order(forward=(("embed", "middle"),), inputs=("middle",)),
    ),
    rt.Stage(
        stage1.forward,
        parameters=("last", "head"),
        receives=[
            rt.Received("f64", (16, 8, 16), cut={0: ("microbatch", "dp"), 1: "mp"}, gradient=True),
            rt.Received("f64", (16, 8, 16), cut={0: ("microbatch", "dp"), 1: "mp"}, gradient=True),
        ],
        fields=("label",),
        evaluate=stage1.evaluate,
        before_microbatch=stage1.before_microbatch, before_step=stage1.before_step, conclude=stage1.conclude,
        gathers=rt.Order(forward=("last", "head"), inputs=(("last", "head.weight"),)),
    ),
]

# zero_bubble: 0F2 is stage 0, forward, microbatch 2; X*3 is X three times, each one microbatch further
schedule = rt.Schedule(
    axis="pp", coordinates=(0, 1),
    actions=[
        "0F0 0F1 (0I0 0W0)*2",
        "(1F0 1I0)*2 1W0 1W1",
    ],
)

program = rt.Program(
    name="staged.shard", strategy="recomputed", ranks=8,
    mesh=mesh, groups=(("dp",), ("mp",), ("dp", "mp")), seed=0,
    parameters=parameters,
    data=rt.Source(
        "random", batch=16, batches=4,
        fields=[
            rt.Field("x", "f64", (16, 8, 8), cut={0: ("microbatch", "dp"), 1: "mp"}),
            rt.Field("label", "i64", (16, 8), cut={0: ("microbatch", "dp"), 1: "mp"}, bound=12),
        ],
    ),
    eval=rt.Source(
        "random", batch=16, batches=2,
        fields=[
            rt.Field("x", "f64", (16, 8, 8), cut={0: ("microbatch", "dp"), 1: "mp"}),
            rt.Field("label", "i64", (16, 8), cut={0: ("microbatch", "dp"), 1: "mp"}, bound=12),
        ],
    ),
    optimizers=[
        rt.Optimizer("adamw", lr=0.01, betas=(0.9, 0.999), eps=1e-08, weight_decay=0.01),
    ],
    stages=stages, pipeline=schedule, loss_pending=("dp", "mp", "microbatch"),
    metrics_pending={"perplexity": (), "accuracy": ("dp", "mp", "microbatch")},
    finish=finish, eval_pending={"loss:1": ("dp", "mp", "microbatch"), "accuracy:1": ("dp", "mp", "microbatch")},
    epochs=2, bucket_bytes=25_000_000,
    clip=0.5,
    precision="f64",
)

if __name__ == "__main__":
    rt.main(program)
