"""Commands that write what a user begins with."""
