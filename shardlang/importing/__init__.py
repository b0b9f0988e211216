"""`shardc import`: a torch module -> a program, a map of its names, its weights. With torch."""
