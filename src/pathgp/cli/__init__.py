"""The command line: ``pathgp fit data.csv --target y``, ``pathgp predict model.pgp new.csv``, and more."""

from __future__ import annotations

import sys


def main(arguments: list[str] | None = None) -> int:
    """Run a command; returns the exit code: 0, 1 for an error in data or model, 2 for usage, 130 after Ctrl-C."""
    # Imported here: the package itself stays free of argparse and of what the commands need.
    from pathgp.cli.arguments import run

    return run(sys.argv[1:] if arguments is None else arguments)
