"""What the Python of a module calls things."""
