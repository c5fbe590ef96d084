"""The small commands, plan and example, and the made-up tables; ``pathgp fit`` uses one when no file is given."""

from __future__ import annotations

import argparse
import csv
import io
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import pathgp
from pathgp.cli.output import print_json, writing


def plan(options: argparse.Namespace) -> None:
    """Print `pathgp.plan`."""
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"--device {options.device} is not available here: --device h200 plans for one from anywhere")
    how = {"memory": options.memory, "members": options.members, "measure": options.measure}
    estimate = pathgp.plan(options.rows, options.columns, options.samples, options.device, options.precision, **how)
    if options.json:
        print_json(asdict(estimate))
    else:
        print(estimate)


def example(options: argparse.Namespace) -> None:
    """Write one of the made-up tables as CSV."""
    table, text = EXAMPLES[options.name](), io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table)
    writer.writerows(zip(*(column.tolist() for column in table.values()), strict=True))
    with writing(options.out) as file:
        file.write(text.getvalue().encode())


def example_table() -> dict[str, NDArray[Any]]:
    """Made-up data to try things on: how fast 600 plants grew, by temperature, light, water and soil.

    Drawn once from a formula with noise of 0.25 mm a day and rounded, so that a CSV file holds the same numbers.
    """
    draw = np.random.default_rng(7)
    temperature, light, water = draw.uniform(5, 35, 600), draw.uniform(0, 1000, 600), draw.uniform(0, 30, 600)
    soil = np.array(["clay", "loam", "sand"])[draw.integers(3, size=600)]
    # Most at 24 degrees; light saturates; sand needs more water than clay.
    need = np.select([soil == "clay", soil == "loam"], [5.0, 8.0], 14.0)
    growth = 8 * np.exp(-(((temperature - 24) / 9) ** 2)) * light / (light + 250) * (1 - np.exp(-water / need))
    growth += 0.25 * draw.standard_normal(600)
    return {
        "temperature": temperature.round(1),
        "light": light.round().astype(int),
        "water": water.round(1),
        "soil": soil,
        "growth": growth.round(3),
    }


def example_stations() -> dict[str, NDArray[Any]]:
    """Made-up data for a map: temperatures at 250 stations in a country of 10 by 8 degrees.

    Drawn once from a smooth formula with noise of 0.3 degrees and rounded.
    """
    draw = np.random.default_rng(8)
    lon, lat = draw.uniform(5, 15, 250).round(3), draw.uniform(44, 52, 250).round(3)
    # Warmer in the south, cold in the mountains, mild at a lake.
    mountains = np.exp(-(((lat - 46.5) / 0.8) ** 2) - ((lon - 10) / 3.5) ** 2)
    lake = np.exp(-((lat - 49.5) ** 2) - (lon - 8) ** 2)
    t = 14 - 0.8 * (lat - 48) - 9 * mountains + 2.5 * lake + 0.3 * draw.standard_normal(250)
    return {"lon": lon, "lat": lat, "t": t.round(2)}


# The tables of ``pathgp example`` by name.
EXAMPLES = {"plants": example_table, "stations": example_stations}
