"""Environments: what a task declares, the managers, the tick and the shell that users hold."""
