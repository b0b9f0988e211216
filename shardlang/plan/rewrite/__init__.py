"""Graph -> graph: operators that the user did not write, and which of them run when."""
