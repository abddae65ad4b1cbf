"""`python -m tickgraph` is the command line."""

import sys

from tickgraph.cli import main

sys.exit(main())
