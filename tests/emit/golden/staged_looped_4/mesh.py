"""The ranks of staged.shard, strategy `looped`, on 4 ranks, as all stages see them."""

from shardlang import runtime as rt

mesh = rt.Mesh(dp=2, pp=2, microbatch=rt.Time(4))
