"""Examples of examples/ beside torch modules that do the same, written by hand."""
