"""For figures 4.1 to 4.3: variants of gradient methods for H a = b, on pol (thesis, sections 4.2.1 to 4.2.3).

The library does not include the variants that converge more slowly; they are implemented here. Errors are those of the
representer weights a in the norm of K (the function everywhere) and in the norm of K^2 (the function at the training
inputs), and the test RMSE.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.common.drawing import COLOURS, grid, legend, save
from benchmarks.common.uci import Regression
from benchmarks.thesis.size import Size, regression
from pathgp.operators import KernelOperator

TITLES = ("‖a − a*‖_K", "‖a − a*‖_K²", "test RMSE")
Curve = list[tuple[float, float, float, float]]


@dataclass(frozen=True)
class Problem:
    """The mean system of one data set, its exact solution, and K as a matrix."""

    data: Regression
    H: KernelOperator
    K: Tensor
    cross: Tensor
    b: Tensor
    exact: Tensor

    @classmethod
    def load(cls, size: Size) -> Problem:
        data = regression("pol", size, torch.float64)
        kernel = data.kernel().to(data.X.device)
        H = KernelOperator(kernel, data.X, data.noise)
        full = H.block(torch.arange(len(data.y), device=H.device))
        exact = torch.cholesky_solve(data.y.unsqueeze(1), torch.linalg.cholesky(full))[:, 0]
        full.diagonal().sub_(data.noise**2)
        with torch.no_grad():
            cross = kernel(data.X_test, data.X)
        return cls(data, H, full, cross, data.y, exact)

    def errors(self, a: Tensor) -> tuple[float, float, float]:
        """K-norm and K^2-norm of the error, test RMSE."""
        wrong = a - self.exact
        fitted = self.K @ wrong
        rmse = (self.cross @ a - self.data.y_test).square().mean().sqrt()
        return float((wrong @ fitted).clamp_min(0).sqrt()), float(fitted.norm()), float(rmse)


Estimate = Callable[[Tensor], Tensor]


def descend(problem: Problem, estimate: Estimate, step: float, momentum: float) -> Iterator[Tensor]:
    """Nesterov's method on the dual objective; ``step`` is beta n. Yields every iterate."""
    a = torch.zeros_like(problem.b)
    v = torch.zeros_like(a)
    beta = step / len(a)
    while True:
        v = momentum * v - beta * estimate(a + momentum * v)
        a = a + v
        yield a


def random_coordinates(problem: Problem, batch: int) -> Estimate:
    """(n / |I|) E_I (H u - b): noise proportional to the distance from the solution."""
    draw = _indices(len(problem.b), batch, problem.H.device)

    def estimate(u: Tensor) -> Tensor:
        index = draw()
        g = torch.zeros_like(u)
        rest = problem.data.noise**2 * u[index] - problem.b[index]
        g[index] = len(u) / batch * (problem.K[index] @ u + rest)
        return g

    return estimate


def half_subsampled(problem: Problem, batch: int) -> Estimate:
    """(n / |I|) E_I K u + sigma^2 u - b: the known part is exact, and the noise no longer vanishes."""
    draw = _indices(len(problem.b), batch, problem.H.device)

    def estimate(u: Tensor) -> Tensor:
        index = draw()
        g = problem.data.noise**2 * u - problem.b
        g[index] += len(u) / batch * (problem.K[index] @ u)
        return g

    return estimate


def random_features(problem: Problem, batch: int) -> Estimate:
    """Phi Phi^T u + sigma^2 u - b with fresh features: additive noise."""
    generator = torch.Generator().manual_seed(0)

    def estimate(u: Tensor) -> Tensor:
        features = problem.H.features(batch, generator)
        return features @ (features.T @ u) + problem.data.noise**2 * u - problem.b

    return estimate


# The average so far, the newest iterate, its number: the new average.
Average = Callable[[Tensor, Tensor, int], Tensor]


def plain(average: Tensor, a: Tensor, t: int) -> Tensor:
    """The iterate itself."""
    return a


def geometric(weight: float) -> Average:
    """weight a + (1 - weight) average."""
    return lambda average, a, t: torch.lerp(average, a, weight)


def arithmetic(start: int) -> Average:
    """The iterate itself up to ``start``, from there the mean of all since."""
    return lambda average, a, t: a if t <= start else torch.lerp(average, a, 1 / (t - start))


def follow(problem: Problem, iterates: Iterator[Tensor], steps: int, averages: dict[str, Average]) -> dict[str, Curve]:
    """Errors of every average at about sixty iterates, evenly spread on a logarithmic scale, until they explode."""
    wanted = set(torch.logspace(0, math.log10(steps), 60).round().int().tolist())
    values = {name: torch.zeros_like(problem.b) for name in averages}
    curves: dict[str, Curve] = {name: [] for name in averages}
    for t, a in enumerate(itertools.islice(iterates, steps), 1):
        for name, average in averages.items():
            values[name] = average(values[name], a, t)
            if t in wanted:
                curves[name].append((float(t), *problem.errors(values[name])))
        if t in wanted and not float(a.norm()) < 1e9:
            break
    return curves


def _indices(n: int, batch: int, device: torch.device) -> Callable[[], Tensor]:
    generator = torch.Generator(device).manual_seed(0)
    return lambda: torch.randperm(n, generator=generator, device=device)[:batch]


def draw_curves(
    curves: dict[str, Curve], path: Path, problem: Problem, unit: str, styles: dict[str, str] | None = None
) -> dict[str, Any]:
    figure, axes = grid(1, 3, width=12, height=3.4)
    start = problem.errors(torch.zeros_like(problem.b))
    exact = problem.errors(problem.exact)[2]
    for number, (name, curve) in enumerate(curves.items()):
        # A diverging curve is cut off where it leaves the panels.
        points = [point for point in curve if point[1] < 10 * start[0] and point[3] < 10 * start[2]]
        for column, panel in enumerate(axes[0]):
            panel.plot(
                [point[0] for point in points],
                [point[1 + column] for point in points],
                styles[name] if styles else "-",
                color=COLOURS[number % len(COLOURS)],
                lw=1.4,
                label=name,
            )
    for column, (panel, title) in enumerate(zip(axes[0], TITLES, strict=True)):
        panel.set_title(title, fontsize=9, loc="left")
        panel.set_xlabel(unit, fontsize=9)
        panel.set_xscale("log")
        if column < 2:
            panel.set_yscale("log")
            panel.set_ylim(top=2 * start[column])
    axes[0, 2].axhline(exact, color="#1b1b1f", lw=0.8, ls=":", label="exact")
    axes[0, 2].set_ylim(0.0, 1.1 * start[2])
    figure.suptitle(f"pol, n = {len(problem.b):,}", fontsize=9, x=0.01, ha="left")
    legend(figure, axes[0, 2])
    save(figure, path)
    return {"n": len(problem.b), "test RMSE of the exact mean": exact}
