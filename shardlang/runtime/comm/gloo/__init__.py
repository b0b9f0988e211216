"""How CPU ranks communicate better than by gloo's own collectives. Only primitives.py leads here."""
