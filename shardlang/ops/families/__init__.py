"""The operators, one module a family."""
