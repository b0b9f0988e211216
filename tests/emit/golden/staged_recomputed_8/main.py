"""staged.shard, strategy `recomputed`, on 8 ranks of the mesh pp = 2, dp = 2, mp = 2, in 2 microbatches.

Written by shardc from the program and its strategy. What each pipeline stage computes is in its own
file; here is where parameters are, what data there is, and in what order the stages work. Run it with

    torchrun --nproc-per-node 8 main.py
"""

import stage0
import stage1
import torch

from shardlang import runtime as rt

mesh = rt.Mesh(pp=2, dp=2, mp=2, microbatch=rt.Time(2))

parameters = [
    rt.Parameter(
        "embed.weight", (16, 8), init=("kaiming_uniform", 8.0), cut=((), ()), stages=(0,),
        reduce=("dp", "mp", "microbatch"), zero=3, zero_axes=("dp",),
    ),
    rt.Parameter(
        "embed.bias", (16,), init=("uniform", -0.3535533905932738, 0.3535533905932738), cut=((),), stages=(0,),
        reduce=("dp", "mp", "microbatch"), zero=3, zero_axes=("dp",),
    ),
    rt.Parameter(
        "middle.weight", (16, 16), init=("kaiming_uniform", 16.0), cut=((), ()), stages=(0,),
        reduce=("dp", "mp", "microbatch"), zero=3, zero_axes=("dp",),
    ),
    rt.Parameter(
        "middle.bias", (16,), init=("uniform", -0.25, 0.25), cut=((),), stages=(0,), reduce=("dp", "mp", "microbatch"),
        zero=3, zero_axes=("dp",),
    ),
    rt.Parameter(
        "last.weight", (16, 16), init=("kaiming_uniform", 16.0), cut=((), ()), stages=(1,),
        reduce=("dp", "mp", "microbatch"), zero=3, zero_axes=("dp",),
    ),
    rt.Parameter(
        "last.bias", (16,), init=("uniform", -0.25, 0.25), cut=((),), stages=(1,), reduce=("dp", "mp", "microbatch"),
        zero=3, zero_axes=("dp",),
    ),
    rt.Parameter(
        "head.weight", (12, 16), init=("kaiming_uniform", 16.0), cut=((), ()), stages=(1,),
        reduce=("dp", "mp", "microbatch"), zero=3, zero_axes=("dp",),
    ),
    rt.Parameter(
        "head.bias", (12,), init=("uniform", -0.25, 0.25), cut=((),), stages=(1,), reduce=("dp", "mp", "microbatch"),
        zero=3, zero_axes=("dp",),
    ),
]
states = []


def finish(totals):
    loss = totals["loss:1"][0] / totals["loss:1"][1]
    accuracy = totals["accuracy:1"][0] / totals["accuracy:1"][1]

    # staged.shard:99  metric perplexity = exp(loss)
    perplexity = torch.exp(loss)

    return {"loss": loss, "perplexity": perplexity, "accuracy": accuracy}


stages = [
    rt.Stage(stage0.forward, fields=("x",), evaluate=stage0.evaluate),
    rt.Stage(
        stage1.forward,
        receives=[
            rt.Received("m", "f64", (16, 8, 16), cut=(("microbatch", "dp"), ("mp",), ()), gradient=True),
            rt.Received("h", "f64", (16, 8, 16), cut=(("microbatch", "dp"), ("mp",), ()), gradient=True),
        ],
        fields=("label",),
        evaluate=stage1.evaluate,
        prepare=stage1.prepare, prepared=stage1.prepared, conclude=stage1.conclude,
    ),
]

schedule = rt.Schedule(
    axis="pp", coordinates=(0, 1),  # zero_bubble
    actions=[
        "0F0 0F1 0I0 0W0 0I1 0W1",
        "1F0 1I0 1F1 1I1 1W0 1W1",
    ],
)

program = rt.Program(
    name="staged.shard", strategy="recomputed", ranks=8,
    mesh=mesh, groups=(("dp",), ("mp",), ("dp", "mp")), seed=0,
    parameters=parameters, states=states,
    data=rt.Source(
        "random", batch=16, batches=4,
        fields=[
            rt.Field("x", "f64", (16, 8, 8), cut=(("microbatch", "dp"), ("mp",), ())),
            rt.Field("label", "i64", (16, 8), cut=(("microbatch", "dp"), ("mp",)), bound=12),
        ],
    ),
    eval=rt.Source(
        "random", batch=16, batches=2,
        fields=[
            rt.Field("x", "f64", (16, 8, 8), cut=(("microbatch", "dp"), ("mp",), ())),
            rt.Field("label", "i64", (16, 8), cut=(("microbatch", "dp"), ("mp",)), bound=12),
        ],
    ),
    optimizers=[
        rt.Optimizer(
            "adamw", lr=0.01, betas=(0.9, 0.999), eps=1e-08, weight_decay=0.01,
            parameters=[
                "embed.weight",
                "embed.bias",
                "middle.weight",
                "middle.bias",
                "last.weight",
                "last.bias",
                "head.weight",
                "head.bias",
            ],
        ),
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
