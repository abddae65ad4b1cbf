"""Benchmarks: they read the arena from outside, and the tick never knows that they exist."""
