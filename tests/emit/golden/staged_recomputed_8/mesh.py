"""The mesh of staged.shard, strategy `recomputed`, on 8 ranks.

Written by shardc from the program and its strategy. All stages import it from here.
"""

from shardlang import runtime as rt

mesh = rt.Mesh(pp=2, dp=2, mp=2, microbatch=rt.Time(2))
