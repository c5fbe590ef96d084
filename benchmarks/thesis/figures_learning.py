"""Figures 5.3 to 5.8: the two gradient estimators, their probes, and the resulting trajectories.

Every fit starts with all hyperparameters at one and takes Adam steps with learning rate 0.1.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.common.drawing import COLOURS, grid, legend, save
from benchmarks.common.recording import device_name
from benchmarks.common.uci import Regression, uci
from benchmarks.thesis.figures_costs import STEPS, TOL, entrants, learn, log_likelihood
from benchmarks.thesis.uci_learning import initial, move
from pathgp import GP, FitReport
from pathgp.data.observations import Observations
from pathgp.learning.estimators import Iterative, State
from pathgp.metrics import nll
from pathgp.operators import KernelOperator

SAMPLES, FEATURES = 64, 512
SEEDS = 5
SETS = ("pol", "elevators", "bike")
INK, GREY = "#1b1b1f", "#8a8a94"


def initial_distances(path: Path, rows: int | None) -> Path:
    """Figure 5.3: the squared distance |x0 - x|_H^2 of a solve's start from its solution, averaged over the probes.

    From zero it is z^T H^-1 z on average tr H^-1 for the standard estimator, and n for the pathwise one; from the
    solution of the step before it is small for both.
    """
    figure, axes = grid(2, 4, width=12, height=2.6, sharex=True)
    for row, name in enumerate(("pol", "elevators")):
        data = uci(name, device=device_name(), rows=rows)
        _, report = learn(data)
        traces, spectrum = _along(data, report)
        for (kind, trace), colour in zip(traces.items(), (COLOURS[1], COLOURS[0]), strict=True):
            for panel, cold, warm in (
                (axes[row, 0], trace.cold, trace.warm),
                (axes[row, 1], trace.epochs, trace.warm_epochs),
            ):
                panel.plot(cold, color=colour, lw=1.6, label=kind)
                panel.plot(warm, color=colour, lw=1.2, ls="--", label=f"{kind}, warm start")
        expected = {"color": INK, "lw": 0.9, "ls": ":"}
        axes[row, 0].plot(spectrum[:, 0], **expected, label="expected: tr H⁻¹, n")
        axes[row, 0].axhline(len(data.y), **expected)
        axes[row, 2].plot(spectrum[:, 1], color=INK, lw=1.4)
        axes[row, 3].plot([1 / step.values["noise"][0] ** 2 for step in report.history], color=INK, lw=1.4)
        axes[row, 0].set_ylabel(f"{name}, n = {len(data.y):,}", fontsize=9)
        axes[row, 0].set_yscale("log")
    titles = ("squared distance to the solution", f"epochs of AP to {TOL:g}", "largest eigenvalue of H⁻¹", "1 / σ²")
    for panel, title in zip(axes[0], titles, strict=True):
        panel.set_title(title, fontsize=9, loc="left")
    for panel in axes[1]:
        panel.set_xlabel("step", fontsize=9)
    legend(figure, axes[0, 0])
    return save(figure, path)


def probes(path: Path, rows: int | None) -> Path:
    """Figure 5.4: what more samples give to the prediction (left), and what more probes take from the clock (right)."""
    data = uci("pol", device=device_name(), rows=rows)
    figure, (axes,) = grid(1, 2, height=3.2)
    model, _ = learn(data)
    counts = [4, 8, 16, 32, 64, 128, 256]
    scores = np.array([[_conditioned(model, data, samples, seed) for seed in range(SEEDS)] for samples in counts])
    for number, label in enumerate(("variances of this library", "averages of squares, as in the thesis")):
        axes[0].plot(counts, scores[:, :, number], ".", color=COLOURS[number], ms=3, alpha=0.5)
        axes[0].plot(counts, scores[:, :, number].mean(1), color=COLOURS[number], lw=1.5, label=label)
    exact = model.condition(data.X, data.y, samples=0)
    axes[0].axhline(log_likelihood(exact, data), color=INK, lw=0.9, ls=":", label="exact variances")
    axes[0].set_xscale("log", base=2)
    axes[0].set_xticks(counts, map(str, counts))
    axes[0].set_xlabel("posterior samples", fontsize=9)
    axes[0].set_title(f"test log-likelihood, mean of {SEEDS} draws", fontsize=9, loc="left")
    for samples, colour in ((16, COLOURS[1]), (64, COLOURS[0])):
        fitted, report = learn(data, samples=samples)
        label = f"{samples} probes, test log-likelihood {log_likelihood(fitted.posterior, data):.2f}"
        axes[1].plot(np.cumsum([step.seconds for step in report.history]), color=colour, lw=1.6, label=label)
    axes[1].set_xlabel("step", fontsize=9)
    axes[1].set_title("seconds", fontsize=9, loc="left")
    for panel in axes:
        panel.legend(frameon=False, fontsize=8)
    figure.suptitle(f"pol, n = {len(data.y):,}", fontsize=9, x=0.01, ha="left")
    return save(figure, path)


def cold_trajectories(path: Path, rows: int | None) -> Path:
    """Figure 5.5: the pathwise estimator with fresh draws and cold starts against exact gradients."""
    return _trajectories(path, rows, warm_start=False)


def warm_trajectories(path: Path, rows: int | None) -> Path:
    """Figure 5.8: the same with frozen draws and warm starts."""
    return _trajectories(path, rows, warm_start=True)


def _trajectories(path: Path, rows: int | None, warm_start: bool) -> Path:
    """Differences of all hyperparameters at all steps (left), and the length scales that differ most at the end."""
    figure, axes = grid(1, 4, width=12, height=3.0)
    differences: list[NDArray[np.float64]] = []
    for name in SETS:
        data = uci(name, device=device_name(), rows=rows)
        _, report = learn(data, warm_start=warm_start)
        exact, found = _exact(name, rows), _curves(report)
        differences.append((found - exact).ravel())
        if name == "elevators":
            lengthscales = np.flatnonzero([key.startswith("lengthscale") for key in _names(report)])
            worst = lengthscales[np.argsort(-np.abs(found - exact)[-1, lengthscales])][:3]
            for panel, column in zip(axes[0, 1:], worst, strict=True):
                panel.plot(exact[:, column], color=INK, lw=1.2, ls=(0, (4, 2)), label="exact gradients", zorder=3)
                panel.plot(found[:, column], color=COLOURS[0], lw=1.6, label=_kind(warm_start))
                panel.set_title(f"elevators, {_names(report)[column]}", fontsize=9, loc="left")
                panel.set_xlabel("step", fontsize=9)
    bins = np.linspace(-0.1, 0.1, 41)
    shown = [np.clip(values, bins[0], bins[-1]) for values in differences]
    axes[0, 0].hist(shown, bins, stacked=True, color=COLOURS[2:5], label=SETS)
    axes[0, 0].set_yscale("log")
    axes[0, 0].legend(frameon=False, fontsize=8)
    axes[0, 0].set_xlabel("difference from exact optimisation", fontsize=9)
    axes[0, 0].set_title("all hyperparameters, all steps", fontsize=9, loc="left")
    near = 100 * np.mean(np.abs(np.concatenate(differences)) < 0.05)
    title = f"n = {len(data.y):,}, {STEPS} steps; {near:.1f} % of all differences are below 0.05"
    figure.suptitle(title, fontsize=9, x=0.01, ha="left")
    legend(figure, axes[0, 1])
    return save(figure, path)


def _kind(warm_start: bool) -> str:
    return f"pathwise, {'frozen draws, warm' if warm_start else 'fresh draws, cold'} starts"


@cache
def _exact(name: str, rows: int | None) -> NDArray[np.float64]:
    """The trajectory of exact gradients, which two figures need."""
    return _curves(learn(uci(name, device=device_name(), rows=rows), estimator="exact")[1])


def _curves(report: FitReport) -> NDArray[np.float64]:
    """All hyperparameters (steps, number of them)."""
    return np.array([[value for values in step.values.values() for value in values] for step in report.history])


def _names(report: FitReport) -> list[str]:
    last = report.history[-1].values.items()
    return [f"{name} {i}" if len(values) > 1 else name for name, values in last for i in range(len(values))]


def _conditioned(model: GP, data: Regression, samples: int, seed: int) -> tuple[float, float]:
    """Test log-likelihood with fresh samples at the model's hyperparameters, by two estimates of the variance."""
    post = model.condition(data.X, data.y, samples=samples, generator=torch.Generator().manual_seed(seed))
    mean, noise = post.mean(data.X_test), model.noise.detach().square()
    squares = (post.paths(data.X_test) - mean).square().mean(0) + noise.to(mean)
    return log_likelihood(post, data), -nll(data.y_test, mean, squares)


@dataclass
class Trace:
    """Along a fit, by dense algebra in float64: what lies before the solver with an estimator's frozen draws.

    cold, warm: mean squared distances from zero and from the solution before.  epochs, warm_epochs: what AP takes.
    """

    estimator: Iterative
    state: State = field(default_factory=State)
    before: Tensor | None = None
    cold: list[float] = field(default_factory=list)
    warm: list[float] = field(default_factory=list)
    epochs: list[float] = field(default_factory=list)
    warm_epochs: list[float] = field(default_factory=list)

    def add(self, model: GP, observed: Observations, H: KernelOperator, inverse: Tensor) -> None:
        """The next step, its hyperparameters in the model and in H."""
        generator = torch.Generator().manual_seed(0)
        if self.state.draws is None:
            self.estimator.draw(model, observed, self.state, generator)
        system = self.estimator.system(model, observed, self.state)
        B = system.targets[:, 1:]
        if system.noise_draws.shape[1]:
            B = B + system.deviation.detach() * system.noise_draws
        solution = inverse @ B
        away = solution if self.before is None else solution - self.before
        self.cold.append(_mean_square(H, solution))
        self.warm.append(_mean_square(H, away))
        solver = entrants(len(B))["AP"]
        for epochs, start in ((self.epochs, None), (self.warm_epochs, self.before)):
            epochs.append(solver.solve(H, B, x0=start, tol=TOL, generator=generator, rule="average").epochs)
        self.before = solution


def _along(data: Regression, report: FitReport) -> tuple[dict[str, Trace], NDArray[np.float64]]:
    """Both estimators along a fit; and tr H^-1 and the largest eigenvalue of H^-1 (steps, 2)."""
    model = initial(data).working_copy(data.X.device)
    observed = model.prepare_data(data.X.to(torch.float64), data.y.to(torch.float64))
    traces = {kind: Trace(Iterative(kind == "pathwise", SAMPLES, FEATURES, True)) for kind in ("standard", "pathwise")}
    spectrum = []
    for step in report.history:
        move(model, step.values)
        H = KernelOperator(model.kernel, observed.X, model.noise.detach().to(observed.X.device))
        values, vectors = torch.linalg.eigh(H.block(torch.arange(H.shape[0], device=H.device)))
        inverse = vectors / values @ vectors.T
        spectrum.append([float((1 / values).sum()), float(1 / values.min())])
        for trace in traces.values():
            trace.add(model, observed, H, inverse)
    return traces, np.array(spectrum)


def _mean_square(H: KernelOperator, x: Tensor) -> float:
    """|x|_H^2, averaged over the columns."""
    return float((x * (H @ x)).sum(0).mean())
