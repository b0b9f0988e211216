"""What an editor shows of a program, as plain values: `shardlang/lsp/` speaks the protocol."""
