"""Tables that the checker, the planner, the runtime and the documents share, one for each kind of
thing. Nothing of the package is imported."""
