"""Types of options: texts of the command line become numbers, sizes and names, or an error says what is expected."""

from __future__ import annotations

import argparse
import csv
import math
from collections.abc import Callable
from typing import Any

from pathgp.compute.memory import read_bytes


def column_names(text: str) -> list[str]:
    """Names separated by commas."""
    # As a line of CSV, so that a name with a comma can be quoted.
    names = [name.strip() for name in next(csv.reader([text], skipinitialspace=True), [])]
    if not names or not all(names):
        raise argparse.ArgumentTypeError(f"expected names separated by commas, got {text!r}")
    return names


def memory_size(text: str) -> int:
    """Bytes, such as 8GB or 8e9."""
    try:
        return read_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _integer(text: str) -> int:
    """A whole number, also written as 1e6 or 1_000_000."""
    try:
        return int(text)
    except ValueError:
        if not float(text).is_integer():
            raise
        return int(float(text))


def _number(kind: Callable[[str], Any], holds: Callable[[Any], bool], expected: str) -> Callable[[str], Any]:
    """A parser of numbers that refuses text and values for which ``holds`` is false."""

    def parse(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not holds(value):
            raise argparse.ArgumentTypeError(f"expected {expected}, got {text!r}")
        return value

    return parse


count = _number(_integer, lambda value: value >= 0, "a whole number, 0 or more")
whole = _number(_integer, lambda value: value >= 1, "a whole number, 1 or more")
positive = _number(float, lambda value: 0 < value < float("inf"), "a positive number")
finite = _number(float, math.isfinite, "a number")
share = _number(float, lambda value: 0 <= value < 1, "a share between 0 and 1")
level = _number(float, lambda value: 0 < value < 1, "a share between 0 and 1, such as 0.95")


def spacing(text: str) -> list[float]:
    """Positive numbers separated by commas."""
    return [positive(part) for part in text.split(",")]
