"""Executions of one program, held against each other."""
