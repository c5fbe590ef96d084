"""Command-line options of benchmarks: their own, and ``--quick`` for tiny sizes."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from benchmarks.common.recording import BENCHMARKS


def parse(parser: argparse.ArgumentParser, **quick: Any) -> argparse.Namespace:
    """Parse the command line; ``--quick`` replaces the defaults by ``quick`` and leaves benchmarks/results alone."""
    parser.add_argument("--quick", action="store_true", help="tiny sizes, results in benchmarks/scratch: does it run?")
    if "--quick" in sys.argv[1:]:
        parser.set_defaults(**quick)
        os.environ.setdefault("PATHGP_RESULTS", str(BENCHMARKS / "scratch"))
    return parser.parse_args()
