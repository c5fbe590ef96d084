"""The small commands: plan and example."""

from __future__ import annotations

import argparse
import csv
import io
from dataclasses import asdict

import torch

import pathgp
from pathgp.cli.example import example_table
from pathgp.cli.output import print_json, writing


def plan(options: argparse.Namespace) -> int:
    """What `pathgp.plan` says."""
    dtype = getattr(torch, options.precision)
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"--device {options.device} is not available here: --device h200 plans for one from anywhere")
    how = {"memory": options.memory, "members": options.members, "measure": options.measure}
    found = pathgp.plan(options.rows, options.columns, options.samples, options.device, dtype, **how)
    if options.json:
        print_json(asdict(found))
    else:
        print(found)
    return 0


def example(options: argparse.Namespace) -> int:
    """Write the table of `example_table` as CSV."""
    table = example_table()
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table)
    writer.writerows(zip(*(column.tolist() for column in table.values()), strict=True))
    with writing(options.out) as file:
        file.write(text.getvalue().encode())
    return 0
