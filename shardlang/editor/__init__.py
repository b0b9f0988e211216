"""A program -> all that an editor shows of it, as plain values. `shardlang/lsp/` has the
protocol."""
