"""The baseline for grids: a sparse variational GP of GPyTorch, trained for a given number of seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.thesis.break_even import Peak

BATCH, RATE = 1000, 0.01


def variational(
    kernel: Callable[[], Any], X: Tensor, y: Tensor, new: list[Tensor], allowed: float, inducing: int, seed: int
) -> tuple[dict[str, Any], list[tuple[Tensor, Tensor]]]:
    """A row about the run, and means and variances of new observations at every set of inputs in ``new``.

    ``kernel`` makes GPyTorch's kernel. Inducing points begin at random rows of X; batches of 1,000, Adam at 0.01. A
    failure is recorded as one, and predicts nothing.
    """
    try:
        import gpytorch
    except ImportError:
        raise SystemExit("this comparison needs GPyTorch: pip install gpytorch, or --sparse 0") from None
    torch.manual_seed(seed)
    chosen = X[torch.randperm(len(X), device=X.device)[:inducing]]

    class Variational(gpytorch.models.ApproximateGP):
        def __init__(self) -> None:
            q = gpytorch.variational.CholeskyVariationalDistribution(len(chosen))
            super().__init__(gpytorch.variational.VariationalStrategy(self, chosen, q))
            self.mean, self.kernel = gpytorch.means.ZeroMean(), gpytorch.kernels.ScaleKernel(kernel())

        def forward(self, X: Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean(X), self.kernel(X))

    likelihood, gp = gpytorch.likelihoods.GaussianLikelihood().to(X), Variational().to(X)
    bound = gpytorch.mlls.VariationalELBO(likelihood, gp, num_data=len(X))
    adam = torch.optim.Adam([*gp.parameters(), *likelihood.parameters()], lr=RATE)
    row: dict[str, Any] = {"method": named(inducing)}
    steps, found = 0, []
    try:
        with Peak() as peak:
            began = time.perf_counter()
            while time.perf_counter() - began < allowed:
                batch = torch.randint(len(X), (BATCH,), device=X.device)
                adam.zero_grad()
                (-bound(gp(X[batch]), y[batch])).backward()
                adam.step()
                steps += 1
                if X.is_cuda:
                    torch.cuda.synchronize()
            fitted = time.perf_counter() - began
            gp.eval()
            with torch.no_grad():
                for inputs in new:
                    parts = [likelihood(gp(part)) for part in inputs.split(10 * BATCH)]
                    found.append((torch.cat([p.mean for p in parts]), torch.cat([p.variance for p in parts])))
        took = time.perf_counter() - began
        row |= {"seconds": took, "fit_seconds": fitted, "predict_seconds": took - fitted, "sparse_steps": steps}
        return row | {"peak_gb": 1e-9 * peak.bytes}, found
    except (RuntimeError, ValueError) as error:  # NotPSDError and NanError are RuntimeErrors
        return {**row, "sparse_steps": steps, "failed": f"{type(error).__name__}: {error}"}, []


def named(inducing: int) -> str:
    """Its name in the rows."""
    return f"gpytorch sparse {inducing}"
