"""Robots that come with tickgraph: model builders and the constants that tasks need."""
