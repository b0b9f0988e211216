"""Models and functions -> layers, values and operators of the graph."""
