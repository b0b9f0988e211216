"""The language server, `shardc lsp`: it turns the plain values of `shardlang/editor/` into those of
the protocol. pygls is imported here alone."""
