"""What the page says about calibration is true of distributions that are known."""

from __future__ import annotations

import numpy as np
import pytest

from pathgp import kernels
from pathgp.html.accuracy import Comparison
from pathgp.html.facts import kernel_in_words, signal_unit


def compared(y: np.ndarray, deviation: float = 1.0) -> Comparison:
    return Comparison(y, np.zeros_like(y), np.full_like(y, deviation**2), "held-out rows", len(y), "")


NORMAL = np.random.default_rng(0).normal(size=3000)
# Two widths, mixed so that 95 % intervals of the common deviation are about right and 50 % intervals are not.
TAILED = NORMAL * np.where(np.random.default_rng(1).random(3000) < 0.85, 0.5, 2.2)

UNIFORM = np.random.default_rng(2).uniform(-(3**0.5), 3**0.5, size=3000)


@pytest.mark.parametrize(
    ("y", "deviation", "good", "said"),
    [
        (NORMAL, 1.0, True, "as they should"),
        (NORMAL, 0.5, False, "too narrow"),
        (NORMAL, 2.0, False, "too wide"),
        (NORMAL, 1.25, False, "too wide"),
        (TAILED, 1.0, None, "heavier tails"),
        (TAILED, 0.6, False, "a sharper peak and heavier tails"),
        (TAILED, 1.5, False, "a sharper peak and heavier tails"),
        (TAILED, 0.3, False, "too narrow, and the errors have heavier tails"),
        (UNIFORM, 1.0, False, "lighter tails"),
        (NORMAL[:10], 1.0, None, "Too few rows"),
        (np.ones(50), 1.0, None, "values are equal"),
    ],
)
def test_verdicts_on_calibration(y: np.ndarray, deviation: float, good: bool | None, said: str) -> None:
    verdict = compared(y, deviation).calibration()
    assert verdict.good is good
    assert said in verdict.text


@pytest.mark.parametrize("deviation", [0.5, 2.0])
def test_advice_knows_whether_the_noise_was_learned(deviation: float) -> None:
    found = compared(NORMAL, deviation)
    assert "If the noise was not learned from data, learn it; otherwise" in found.calibration().text
    assert "The noise was given: learn it, or" in found.calibration(False).text
    assert "noise" not in found.calibration(True).text.split(":", 1)[1]


def test_chance_alone_raises_no_alarm() -> None:
    rng = np.random.default_rng(0)
    alarms = sum(compared(rng.normal(size=60)).calibration().good is False for _ in range(300))
    assert alarms <= 15


def test_probability_transforms_are_uniform_for_the_truth() -> None:
    counts, _ = np.histogram(compared(NORMAL).pit, 10, (0, 1))
    assert counts.sum() == len(NORMAL)
    assert np.abs(counts - 300).max() < 5 * np.sqrt(270)


def test_no_variance_to_explain() -> None:
    found = compared(np.full(30, 2.0))
    assert np.isnan(found.r2)
    assert "constant" in found.sentence("y")
    assert compared(NORMAL).r2 == pytest.approx(0.0, abs=0.01)


def test_kernels_in_words() -> None:
    kernel = kernels.Scale(kernels.Matern(2.5, [0.5, 2.0], active_dims=[0, 2]), 3.0) + kernels.Linear(active_dims=[1])
    said = kernel_in_words(kernel, ["a", "b", "c"], signal_unit([kernel], 2.0))
    assert said.startswith("a sum of Matérn 5/2 kernel")
    assert "of a and c, length scales 0.500 to 2, one per input, standard deviation 6" in said
    assert said.endswith("linear kernel (straight lines) of b")
    # The units of y cannot be divided among several signals that multiply each other.
    for sides in ([kernel * kernels.Scale(kernels.Matern())], [kernel, kernel], [kernels.Matern()]):
        assert signal_unit(sides, 2.0) is None
