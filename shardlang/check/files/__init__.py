"""What the names of a file mean, and what a command line changes of them."""
