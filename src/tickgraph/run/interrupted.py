"""What a signal says and does in a training, by how far that has come."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from tickgraph.core.words import counted
from tickgraph.run import folder, manifest
from tickgraph.run.folder import RunFolder
from tickgraph.run.output import say_at_once
from tickgraph.run.signals import Interrupts

if TYPE_CHECKING:
    from tickgraph.run.schedule import Ending


class SignalsOfTraining:
    """Answers signals from a run's first file on.

    Args:
        run: the run's folder.
        resumed: the run goes on; otherwise it begins.
        interrupts: installed already; asks here from now on.
    """

    def __init__(self, run: RunFolder, resumed: bool, interrupts: Interrupts) -> None:
        self.ending: Ending | None = None
        """Where the run stands; None while its task is still being loaded."""
        self._run, self._resumed, self._interrupts = run, resumed, interrupts
        interrupts.at_first, interrupts.at_exit = self._first, self._end

    def _first(self, signal: str) -> str:
        assert self.ending is not None  # training has begun
        return f"{signal}: finishing the iteration and saving; again to end at once, which {self.ending.lost()}"

    def _end(self, signal: str) -> None:
        """Leave the folder whole, with a summary that says how the run ended."""
        run, ending = self._run, self.ending
        facts = {"status": "interrupted", "reason": "during start-up"} if ending is None else ending.facts()
        if ending is not None and ending.begun:  # so the run is held: what is half written is this process's
            with suppress(OSError):
                folder.clean(run)
        if facts["status"] == "completed":  # only a picture is missing; the summary is written
            say_at_once(f"{signal}: left out what was not drawn yet; the run in {run.path} is complete")
            return
        if self._resumed and not (ending and ending.begun):  # an older summary stays true
            say_at_once(f"{signal} before the run went on; nothing in {run.path} has changed")
            return
        when = f"{signal} while starting, compiling or closing"
        if self._interrupts.requested_twice:
            when = f"{signal} again after {counted(facts['iteration'], 'iteration')}"
        facts |= {"status": "interrupted", "reason": facts.get("reason") or when}
        manifest.write_summary(run, **facts)
        cost = f", which {ending.lost()}" if ending else ""
        say_at_once(f"interrupted by {signal}{cost}; the run is in {run.path}")
