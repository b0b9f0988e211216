"""The texts that a program is made of: where they are, how they are read, and places in them."""
