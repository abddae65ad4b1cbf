"""Foundations that know nothing of robots: arena, random words, rotations, programs, the judge."""
