"""Names in the Python of a module."""
