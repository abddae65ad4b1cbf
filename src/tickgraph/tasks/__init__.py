"""The tasks that ship with tickgraph, and the registry that finds these and yours."""
