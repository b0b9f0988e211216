"""A plan -> what the ranks of a coordinate do in a step: the program of a step, as values."""
