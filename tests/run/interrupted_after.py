"""A training run as a process of its own that gets SIGINT when a milestone of its start is reached: its first word."""

import os
import signal
import sys

from tickgraph import cli
from tickgraph.run.signals import Interrupts
from tickgraph.run.startup import StartUp

MILESTONE, *WORDS = sys.argv[1:]
reached = StartUp.reached


def reached_and_signalled(self: StartUp, name: str) -> None:
    new = name not in self.seconds
    reached(self, name)
    if new and name == MILESTONE:
        os.kill(os.getpid(), signal.SIGINT)


StartUp.reached = reached_and_signalled
sys.exit(cli.main(WORDS, Interrupts().install()))
