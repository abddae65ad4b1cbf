"""Triton kernels of the learner. Only `learn/path.py` imports what is in here, and only where Triton is to be used."""
