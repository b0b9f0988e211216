"""One module for each command of `shardc`, under the command's name."""
