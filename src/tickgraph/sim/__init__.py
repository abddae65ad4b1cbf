"""Simulation: scenes, models and the backends that advance many worlds at once."""
