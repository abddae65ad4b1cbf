"""tickgraph: robot reinforcement learning in which a whole control step is one program."""

__version__ = "0.1.0"
