"""Random conditioning problems of every kind: each posterior is right, or there is a warning or a refusal.

The family of `benchmarks/trust/random_family.py`, a few hundred small cases of it. Repeat a case that fails with
``python -m benchmarks.trust.random_family --case NUMBER --rows-max 120``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import pathgp
from benchmarks.trust.cases import Case, Grid, Table, draw_case
from benchmarks.trust.check import compare, measure
from pathgp.posterior.grid import GridPosterior

CASES, BATCH, ROWS_MAX = 300, 20, 120


@pytest.mark.statistical
@pytest.mark.parametrize("first", range(0, CASES, BATCH))
def test_nothing_is_wrong_without_a_word(first: int) -> None:
    """False-alarm rate below 1e-6: what is left to chance are six standard errors, see `trust_check`."""
    rows = [measure(number, ROWS_MAX) for number in range(first, first + BATCH)]
    wrong = {row["case"]: row["failures"] for row in rows if row["verdict"] == "WRONG"}
    assert not wrong


def test_family_has_every_kind() -> None:
    facts = [draw_case(number, ROWS_MAX).facts() for number in range(CASES)]
    for name, wanted in {
        "kind": {"table", "grid"},
        "dtype": {"float32", "float64"},
        "solver": {"auto", "cg", "ap", "cholesky", "sdd", "sgd"},
        "layout": {"box", "clusters", "line", "far row", "repeated", "grid"},
        "level": {"zero", "mean", "standardise"},
    }.items():
        assert {row[name] for row in facts} == wanted
    assert min(row["noise/signal"] for row in facts) < 1e-5
    assert max(row["noise/signal"] for row in facts) > 5.0
    assert max(row["offset"] for row in facts) > 1e8


def good(kind: type[Case]) -> Case:
    """The first case of a kind that is right, with enough rows for all that can be wrong."""
    for number in range(CASES):
        case = draw_case(number, ROWS_MAX)
        if isinstance(case, kind) and len(case.y) > 20 and measure(number, ROWS_MAX)["verdict"] == "right":
            return case
    raise AssertionError("no such case")


@pytest.mark.parametrize(("kind", "posterior"), [(Table, pathgp.Posterior), (Grid, GridPosterior)])
@pytest.mark.parametrize(
    ("method", "change", "failure"),
    [
        ("mean", lambda mean, signal: mean + signal, "mean"),
        ("variance", lambda variance, signal: 1.69 * variance, "std"),
        ("variance", lambda variance, signal: variance / 9.0, "truth"),
        ("variance", lambda variance, signal: variance * torch.nan, "std"),
    ],
)
def test_wrong_predictions_are_found(
    kind: type[Case], posterior: Any, method: str, change: Any, failure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The instrument itself: a shifted mean and a wrong variance are told from right ones."""
    case = good(kind)
    right = getattr(posterior, method)

    def wrong(self: Any, *inputs: Any, **options: Any) -> Tensor:
        return change(right(self, *inputs, **options), case.signal)

    monkeypatch.setattr(posterior, method, wrong)
    row = measure(case.number, ROWS_MAX)
    assert row["verdict"] == "WRONG"
    assert failure in row["failures"]


def test_exact_solves_need_no_allowance() -> None:
    """The reference estimator on an exactly solved table: the same standard deviations up to rounding."""
    cases = (draw_case(number, ROWS_MAX) for number in range(CASES))
    case = next(
        replace(case, solver="cholesky")
        for case in cases
        if isinstance(case, Table)
        and (case.dtype, case.layout, case.offset) == (torch.float64, "box", 0.0)
        and len(case.y) > 20
        and case.noise > 1e-3 * case.signal
    )
    posterior = case.condition()
    errors = compare(case, posterior, *case.predict(posterior, case.method))
    assert errors.std < 1e-6
    assert errors.mean_slack < 1.0
