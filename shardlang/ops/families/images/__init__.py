"""Operators on values with spatial dims, one module a family."""
