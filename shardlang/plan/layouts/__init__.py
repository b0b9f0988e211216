"""Which layout each operator takes, and which conversions that needs."""
