"""`shardlang.torch`: loops of the user's own, beside `shardc run`."""
