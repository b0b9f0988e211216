"""`shardc import`: torch modules as programs, beside the modules."""
