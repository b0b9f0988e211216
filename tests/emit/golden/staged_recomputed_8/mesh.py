"""The ranks of staged.shard, strategy `recomputed`, on 8 ranks, as all stages see them."""

from shardlang import runtime as rt

mesh = rt.Mesh(pp=2, dp=2, mp=2, microbatch=rt.Time(2))
