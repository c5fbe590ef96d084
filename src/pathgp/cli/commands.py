"""The small commands: plan, example and bench."""

from __future__ import annotations

import argparse
import ast
import csv
import io
import shutil
import subprocess
import sys
import textwrap
from dataclasses import asdict
from pathlib import Path

import torch

import pathgp
from pathgp import datasets
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
    """The table of `datasets.example_table` as CSV."""
    table = datasets.example_table()
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table)
    writer.writerows(zip(*(column.tolist() for column in table.values()), strict=True))
    with writing(options.out) as file:
        file.write(text.getvalue().encode())
    return 0


def bench(options: argparse.Namespace) -> int:
    """List or run the programs of benchmarks/, which are in a checkout only."""
    folder = Path(pathgp.__file__).resolve().parents[2] / "benchmarks"
    if not (folder / "recording.py").is_file():
        raise ValueError("benchmarks are no part of the installed package: run this from a checkout, pip install -e .")
    found = {path.stem: text for path in sorted(folder.glob("*.py")) if _runs(text := path.read_text(encoding="utf-8"))}
    if options.name is None:
        width, most = max(map(len, found)), shutil.get_terminal_size().columns
        for name, text in found.items():
            print(
                f"{name:<{width}}  {textwrap.shorten(_first_line(text), max(40, most - width - 2), placeholder=' ...')}"
            )
        return 0
    if options.name not in found:
        raise ValueError(f"no benchmark is called {options.name!r}: there are {', '.join(found)}")
    return subprocess.call([sys.executable, str(folder / f"{options.name}.py"), *options.rest])


def _runs(text: str) -> bool:
    return 'if __name__ == "__main__":' in text


def _first_line(text: str) -> str:
    return (ast.get_docstring(ast.parse(text)) or "").split("\n")[0]
