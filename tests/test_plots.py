"""The pictures of a fit show the numbers of its report."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from plain_fits import plain_fit

pytest.importorskip("matplotlib")
from matplotlib.figure import Figure

from pathgp import GP, FitReport, kernels, means, plots


def fitted(steps: int = 4, lengthscale: list[float] | float = (1.0, 2.0), **options: object) -> FitReport:
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(40, 2, generator=generator, dtype=torch.float64)
    y = torch.sin(6 * X[:, 0]) - 1
    gp = GP(kernels.Scale(kernels.Matern(1.5, torch.tensor(lengthscale))), mean=means.Constant())
    return plain_fit(gp, X, y, steps=steps, samples=4, features=16, generator=generator, **options)


def lines(axes: object) -> dict[str, np.ndarray]:
    return {line.get_label(): np.asarray(line.get_ydata()) for line in axes.get_lines()}


def test_hyperparameters_are_drawn_by_name_and_the_mean_is_not() -> None:
    report, axes = fitted(), Figure().subplots()
    plots.draw_hyperparameters(axes, report)
    drawn = lines(axes)
    assert set(axes.get_legend_handles_labels()[1]) == {"lengthscale (2)", "signal", "noise"}
    assert drawn["noise"].tolist() == [step.values["noise"][0] for step in report.history]
    assert axes.get_yscale() == "log"


def test_residuals_come_with_the_tolerance() -> None:
    report, axes = fitted(tol=0.03), Figure().subplots()
    plots.draw_residuals(axes, report)
    drawn = lines(axes)
    assert drawn["probes, average"].tolist() == [step.probe_residual for step in report.history]
    assert drawn["tolerance"].tolist() == [0.03, 0.03]


def test_gain_is_per_row() -> None:
    report, axes = fitted(), Figure().subplots()
    plots.draw_gain(axes, report)
    assert axes.get_lines()[0].get_ydata()[-1] == report.history[-1].gain / 40
    assert "estimated" in axes.get_title("left")


def test_a_gain_is_exact_only_if_every_step_uses_all_rows() -> None:
    exact = fitted(estimator="exact")
    mixed = replace(exact, history=[replace(exact.history[0], log_likelihood=None), *exact.history[1:]])
    vecchia = replace(exact, approximation="by Vecchia's approximation")
    titles = []
    for report in (exact, mixed, vecchia):
        axes = Figure().subplots()
        plots.draw_gain(axes, report)
        titles.append(axes.get_title("left"))
    assert ["estimated" in title for title in titles] == [False, True, False]
    assert titles[2].endswith("(approximated)")


def test_relevance_is_sorted_and_named() -> None:
    axes = Figure().subplots()
    plots.draw_relevance(axes, torch.tensor([2.0, 0.5, 1.0]), ["slow", "fast", "middle"])
    assert [label.get_text() for label in axes.get_yticklabels()] == ["fast", "middle", "slow"]
    assert [bar.get_width() for bar in axes.patches] == [2.0, 1.0, 0.5]


def test_relevance_leaves_out_the_least_and_says_so() -> None:
    axes = Figure().subplots()
    plots.draw_relevance(axes, np.arange(1.0, 6.0), most=2)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["x0", "x1"]
    assert "3 smaller" in axes.get_title("left")


def test_relevance_wants_a_name_per_length_scale() -> None:
    with pytest.raises(ValueError, match="one name per length scale"):
        plots.draw_relevance(Figure().subplots(), [1.0, 2.0], ["only one"])


@pytest.mark.parametrize(
    ("panels", "options"),
    [(4, {}), (3, {"estimator": "exact"}), (3, {"lengthscale": 1.0})],
    ids=["all", "exact", "one length scale"],
)
def test_a_fit_at_a_glance_has_the_panels_it_has_numbers_for(panels: int, options: dict[str, object]) -> None:
    figure = Figure(layout="constrained")
    plots.draw_fit(figure, fitted(**options), ["first", "second"])
    assert len(figure.axes) == panels
    figure.canvas.draw()


def test_a_fit_without_steps_is_refused() -> None:
    with pytest.raises(ValueError, match="no steps"):
        plots.draw_fit(Figure(), fitted(steps=0))
