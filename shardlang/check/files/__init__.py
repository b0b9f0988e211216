"""The meaning of the names of a file, and how a command line changes them."""
