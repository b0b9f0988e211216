"""Plans to readable Python."""
