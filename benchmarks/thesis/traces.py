"""What lies before the solver along a fit, for figures 5.3 and 5.6."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.common.uci import Regression
from benchmarks.thesis.learning_fits import TOL, entrants
from benchmarks.thesis.table_5_1 import initial, move
from pathgp import GP, FitReport
from pathgp.data.observations import Observations
from pathgp.learning.estimators import Iterative, State
from pathgp.operators import KernelOperator

SAMPLES, FEATURES = 64, 512


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


def trace_fit(data: Regression, report: FitReport) -> tuple[dict[str, Trace], NDArray[np.float64]]:
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
