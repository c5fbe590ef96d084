"""The made-up table of ``pathgp example``, which ``pathgp fit`` uses when no file is given."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


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
