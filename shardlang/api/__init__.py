"""The compiler from Python: the commands `check`, `plan`, `compile`, `fmt` and `explain` as
functions that give frozen values."""
