"""The mesh of staged.shard, strategy `looped`, on 4 ranks.

Written by shardc from the program and its strategy. All stages import it from here.
"""

from shardlang import runtime as rt

mesh = rt.Mesh(dp=2, pp=2, microbatch=rt.Time(4))
