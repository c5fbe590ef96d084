"""The command line: ``pathgp fit data.csv --target y``, ``pathgp predict model.pgp new.csv``, and more."""

from pathgp.cli.arguments import main as main
