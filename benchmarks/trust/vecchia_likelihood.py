"""Fields learned by Vecchia's likelihood and by pathwise gradients: the exact likelihood that each reaches.

    python -m benchmarks.trust.vecchia_likelihood [--rows 3000] [--seeds 0 1 2]

Points of the unit cube and values drawn from a Matern process with signal 1 and noise. A row: the case, the estimator,
seconds of the fit, and the exact log likelihood per row at the hyperparameters that it found, as means over the seeds.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch

import pathgp
from benchmarks.common.options import parse
from benchmarks.common.recording import table, write
from pathgp import kernels

# Dimension, nu, length scale, noise.
CASES = [
    (2, 0.5, 0.3, 0.05),
    (2, 1.5, 0.2, 0.1),
    (2, 1.5, 0.7, 1.0),
    (2, 1.5, 0.3, 3.0),
    (1, 1.5, 0.05, 0.3),
    (3, 1.5, 0.4, 0.1),
    (3, 2.5, 0.8, 1.0),
]


def measure(case: tuple[int, float, float, float], estimator: str, n: int, seed: int) -> tuple[float, float]:
    """Seconds of a default fit with this estimator, and the exact log likelihood per row."""
    d, nu, lengthscale, noise = case
    generator = torch.Generator().manual_seed(seed)
    X = torch.rand(n, d, generator=generator, dtype=torch.float64)
    K = kernels.Matern(nu, lengthscale)(X).detach()
    K.diagonal().add_(noise**2)
    y = torch.linalg.cholesky(K) @ torch.randn(n, generator=generator, dtype=torch.float64)
    gp = pathgp.GP(kernels.Scale(kernels.Matern(nu, torch.ones(d))), noise=1.0)
    began = time.perf_counter()
    gp.fit(X, y, estimator=estimator, samples=16, generator=generator)
    seconds = time.perf_counter() - began
    with torch.no_grad():
        H = gp.kernel(X)
        H.diagonal().add_(gp.noise.square())
        model = torch.distributions.MultivariateNormal(torch.zeros(n, dtype=torch.float64), H)
        return seconds, float(model.log_prob(y)) / n


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=3000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--cases", type=int, default=len(CASES), help="the first ones only")
    options = parse(parser, rows=60, seeds=[0], cases=1)
    rows: list[dict[str, Any]] = []
    for case in CASES[: options.cases]:
        for estimator in ("vecchia", "pathwise"):
            found = torch.tensor([measure(case, estimator, options.rows, seed) for seed in options.seeds])
            facts = dict(zip(("d", "nu", "lengthscale", "noise"), case, strict=True))
            seconds, likelihood = found.mean(0).tolist()
            rows.append({**facts, "estimator": estimator, "seconds": seconds, "log_likelihood_per_row": likelihood})
            print(table(rows[-1:]), flush=True)
    print(table(rows))
    print(f"written to {write('vecchia_likelihood_cpu', rows, n=options.rows, seeds=options.seeds)}")


if __name__ == "__main__":
    main()
