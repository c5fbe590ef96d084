"""Approximate Gaussian processes of GPyTorch behind one function: fit for some seconds or steps, then predict.

- svgp: a sparse variational GP; ``size`` inducing points start at random rows.
- vnngp: a variational nearest-neighbour GP; inducing points at all rows, ``size`` neighbours each.
- ski: an exact GP with a kernel interpolated on a grid (KISS), for up to four inputs; ``size`` grid points per input.

CaGP, the fourth baseline of the thesis, is missing: no release of GPyTorch contains it.
"""

from __future__ import annotations

import argparse
import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.common.peak import Peak
from benchmarks.common.recording import require

# The largest number of inputs of SKI: its grid has size^d points.
SKI_INPUTS = 4
# Test rows per prediction, and rows whose neighbours are found at once.
TEST_ROWS, NEIGHBOUR_ROWS = 10_000, 1000

Prediction = tuple[Tensor, Tensor]
# A model of GPyTorch, and a function that returns the loss of the next step.
Built = tuple[Any, Callable[[], Tensor]]


@dataclass(frozen=True)
class Baseline:
    """A method and its settings.

    size: inducing points, neighbours or grid points per input.  batch: rows of a step (ski: all).  rate: that of Adam.
    noise: the initial standard deviation of the noise, by default GPyTorch's.  learn: False keeps kernel and noise.
    """

    method: str
    size: int
    batch: int = 1000
    rate: float = 0.01
    noise: float | None = None
    learn: bool = True

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ValueError(f"no baseline is called {self.method!r}: choose from {', '.join(METHODS)}")

    @property
    def name(self) -> str:
        """Its name in the rows of results."""
        return f"gpytorch {'sparse' if self.method == 'svgp' else self.method} {self.size}"


def run_baseline(
    baseline: Baseline,
    kernel: Callable[[], Any],
    X: Tensor,
    y: Tensor,
    new: list[Tensor],
    *,
    seconds: float = math.inf,
    steps: int | None = None,
    seed: int = 0,
) -> tuple[dict[str, Any], list[Prediction]]:
    """Return a row about the run, and means and variances of new observations at every set of inputs in ``new``.

    ``kernel`` makes GPyTorch's kernel, signal scale included. Training ends after ``seconds`` or ``steps``, whichever
    comes first. A failure is recorded as one, and predicts nothing.
    """
    if math.isinf(seconds) and steps is None:
        raise ValueError("a baseline needs an end: give seconds or steps")
    gpytorch = require("gpytorch")
    torch.manual_seed(seed)
    likelihood = gpytorch.likelihoods.GaussianLikelihood().to(X)
    if baseline.noise is not None:
        # GPyTorch refuses a variance below its bound of 1e-4.
        likelihood.noise_covar.raw_noise_constraint.lower_bound.fill_(min(1e-4, 0.5 * baseline.noise**2))
        likelihood.noise = baseline.noise**2
    row: dict[str, Any] = {"method": baseline.name}
    taken, found = 0, []
    try:
        with Peak() as peak, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            began = time.perf_counter()
            gp, loss = METHODS[baseline.method](gpytorch, baseline, kernel(), likelihood, X, y)
            if not baseline.learn:
                gp.covar_module.requires_grad_(False)
                likelihood.requires_grad_(False)
            trained = dict.fromkeys([*gp.parameters(), *likelihood.parameters()])
            trained = [parameter for parameter in trained if parameter.requires_grad]
            adam = torch.optim.Adam(trained, lr=baseline.rate)
            while (steps is None or taken < steps) and time.perf_counter() - began < seconds:
                adam.zero_grad()
                loss().backward()
                adam.step()
                taken += 1
                if X.is_cuda:
                    torch.cuda.synchronize()
            fitted = time.perf_counter() - began
            gp.eval()
            likelihood.eval()
            with torch.no_grad():
                for inputs in new:
                    parts = [likelihood(gp(part)) for part in inputs.split(TEST_ROWS)]
                    found.append((torch.cat([p.mean for p in parts]), torch.cat([p.variance for p in parts])))
        took = time.perf_counter() - began
        row |= {"seconds": took, "fit_seconds": fitted, "predict_seconds": took - fitted, "sparse_steps": taken}
        return row | {"peak_gb": 1e-9 * peak.bytes}, found
    except (RuntimeError, ValueError) as error:  # NotPSDError and NanError are RuntimeErrors
        return {**row, "sparse_steps": taken, "failed": f"{type(error).__name__}: {error}"}, []


def _svgp(gpytorch: Any, baseline: Baseline, kernel: Any, likelihood: Any, X: Tensor, y: Tensor) -> Built:
    chosen = X[torch.randperm(len(X), device=X.device)[: baseline.size]]

    class Variational(gpytorch.models.ApproximateGP):
        def __init__(self) -> None:
            q = gpytorch.variational.CholeskyVariationalDistribution(len(chosen))
            super().__init__(gpytorch.variational.VariationalStrategy(self, chosen, q))
            self.mean_module, self.covar_module = gpytorch.means.ZeroMean(), kernel

        def forward(self, X: Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean_module(X), self.covar_module(X))

    gp = Variational().to(X)
    bound = gpytorch.mlls.VariationalELBO(likelihood, gp, num_data=len(X))

    def loss() -> Tensor:
        rows = torch.randint(len(X), (baseline.batch,), device=X.device)
        return -bound(gp(X[rows]), y[rows])

    return gp, loss


def _vnngp(gpytorch: Any, baseline: Baseline, kernel: Any, likelihood: Any, X: Tensor, y: Tensor) -> Built:
    # Neighbours are sought among earlier rows: a random order makes them all alike.
    order = torch.randperm(len(X), device=X.device)
    X, y, neighbours = X[order], y[order], min(baseline.size, len(X) - 1)

    class Strategy(gpytorch.variational.NNVariationalStrategy):
        def _compute_nn(self) -> Strategy:
            # Without FAISS, GPyTorch's own search builds a tree for every row, which takes n² operations.
            self.nn_util.set_nn_idx(X.float())
            self.nn_xinduce_idx = earlier_neighbours(X, neighbours)
            return self

    class Nearest(gpytorch.models.ApproximateGP):
        def __init__(self) -> None:
            q = gpytorch.variational.MeanFieldVariationalDistribution(len(X))
            strategy = Strategy(self, X, q, k=neighbours, training_batch_size=min(baseline.batch, len(X)))
            super().__init__(strategy)
            self.mean_module, self.covar_module = gpytorch.means.ZeroMean(), kernel

        def forward(self, X: Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean_module(X), self.covar_module(X))

        def __call__(self, X: Tensor | None, prior: bool = False, **options: Any) -> Any:
            # Without inputs the strategy draws the rows of a step itself.
            return self.variational_strategy(x=X, prior=prior, **options)

    gp = Nearest().to(X)
    bound = gpytorch.mlls.VariationalELBO(likelihood, gp, num_data=len(X))

    def loss() -> Tensor:
        output = gp(None)
        return -bound(output, y[gp.variational_strategy.current_training_indices])

    return gp, loss


def earlier_neighbours(X: Tensor, count: int) -> Tensor:
    """The rows that are nearest to each row i >= count among rows 0, ..., i - 1: (n - count, count)."""
    rows = torch.arange(len(X), device=X.device)
    found = []
    for part in rows[count:].split(NEIGHBOUR_ROWS):
        distances = torch.cdist(X[part], X[: part[-1]])
        distances.masked_fill_(rows[: part[-1]] >= part.unsqueeze(1), math.inf)
        found.append(distances.topk(count, largest=False).indices)
    return torch.cat(found)


def _ski(gpytorch: Any, baseline: Baseline, kernel: Any, likelihood: Any, X: Tensor, y: Tensor) -> Built:
    d = X.shape[1]
    if d > SKI_INPUTS:
        raise ValueError(f"SKI has {baseline.size}^d grid points: it takes up to {SKI_INPUTS} inputs, got {d}")
    bounds = [(float(X[:, j].min()), float(X[:, j].max())) for j in range(d)]
    grid = gpytorch.kernels.GridInterpolationKernel(kernel, grid_size=baseline.size, num_dims=d, grid_bounds=bounds)

    class Interpolated(gpytorch.models.ExactGP):
        def __init__(self) -> None:
            super().__init__(X, y, likelihood)
            self.mean_module, self.covar_module = gpytorch.means.ZeroMean(), grid

        def forward(self, X: Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean_module(X), self.covar_module(X))

    gp = Interpolated().to(X)
    likelihood_of_all = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, gp)
    return gp, lambda: -likelihood_of_all(gp(X), y)


def add_options(parser: argparse.ArgumentParser, sparse: int = 0) -> None:
    """Options that choose baselines; zero leaves one out."""
    parser.add_argument("--sparse", type=int, default=sparse, help="inducing points of GPyTorch's SVGP; 0: none")
    parser.add_argument("--vnngp", type=int, default=0, help="neighbours of GPyTorch's VNNGP; 0: none")


def chosen_baselines(options: argparse.Namespace) -> list[Baseline]:
    """The baselines that the options of `add_options` name."""
    sizes = {"svgp": options.sparse, "vnngp": options.vnngp}
    return [Baseline(method, size) for method, size in sizes.items() if size]


METHODS: dict[str, Callable[..., Built]] = {"svgp": _svgp, "vnngp": _vnngp, "ski": _ski}
