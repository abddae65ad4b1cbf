"""Benchmarks: each module without an underscore is a command. They look from outside; the tick knows none of them."""
