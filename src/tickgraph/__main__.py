"""The process: signals first, because Ctrl-C may come before anything else is imported, then the command line."""

import sys


def main() -> int:
    """Run the command line as a process of its own; returns its exit code."""
    try:
        from tickgraph.run.signals import Interrupts, note_interrupt

        interrupts = Interrupts().install() if sys.argv[1:2] == ["train"] else None
        note_interrupt()
        from tickgraph.cli import main as run

        code = run(interrupts=interrupts)
    except KeyboardInterrupt:  # while these were loaded
        return 130  # EXIT_INTERRUPTED
    if interrupts is not None:
        interrupts.ignore()
    return code


if __name__ == "__main__":
    sys.exit(main())
