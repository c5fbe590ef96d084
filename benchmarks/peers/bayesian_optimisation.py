"""Thompson sampling on Hartmann-6 in batches of 50: `pathgp.botorch.PathwiseModel` compared with BoTorch's own paths.

    python -m benchmarks.peers.bayesian_optimisation [--seeds 0 1 2 3 4] [--batches 6]

Both start from the same 50 random points, refit the hyperparameters before every batch, and maximise 50 posterior
functions with the same call of `optimize_acqf`. Regret is the maximum minus the best value so far.
"""

from __future__ import annotations

import argparse
import time
import warnings
from typing import Any

import torch
from torch import Tensor

import pathgp
from benchmarks.common.options import parse
from benchmarks.common.recording import table, write
from pathgp import kernels

try:
    from botorch.acquisition.thompson_sampling import PathwiseThompsonSampling
    from botorch.fit import fit_gpytorch_mll
    from botorch.models import SingleTaskGP
    from botorch.models.transforms import Standardize
    from botorch.optim import optimize_acqf
    from botorch.test_functions import Hartmann
    from gpytorch.mlls import ExactMarginalLogLikelihood

    from pathgp.botorch import PathwiseModel
except ImportError:
    raise SystemExit("this comparison needs BoTorch: pip install botorch") from None

DIM = 6
FUNCTION = Hartmann(dim=DIM, negate=True)
BOUNDS = torch.tensor([[0.0] * DIM, [1.0] * DIM], dtype=torch.float64)


def ours(X: Tensor, y: Tensor, seed: int, samples: int) -> PathwiseModel:
    gp = pathgp.GP(kernels.Scale(kernels.Matern(2.5, torch.ones(DIM)), 1.0), noise=0.1, standardise=True)
    generator = torch.Generator().manual_seed(seed)
    gp.fit(
        X,
        y,
        steps=40,
        optimiser="lbfgs",
        estimator="exact",
        initialise="data",
        samples=samples,
        generator=generator,
    )
    return PathwiseModel(gp.posterior)


def theirs(X: Tensor, y: Tensor, seed: int, samples: int) -> Any:
    model = SingleTaskGP(X, y.unsqueeze(1), outcome_transform=Standardize(1))
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    return model.eval()


def run(name: str, seed: int, batches: int, size: int) -> dict[str, Any]:
    """Regret after every batch."""
    build = {"pathgp": ours, "botorch": theirs}[name]
    torch.manual_seed(seed)
    X = torch.rand(size, DIM, dtype=torch.float64)
    y = FUNCTION(X)
    regrets, began = [], time.perf_counter()
    for batch in range(batches):
        function = PathwiseThompsonSampling(build(X, y, 100 * seed + batch, size))
        options = {"maxiter": 100}
        chosen, _ = optimize_acqf(function, BOUNDS, q=size, num_restarts=2, raw_samples=64, options=options)
        X, y = torch.cat([X, chosen]), torch.cat([y, FUNCTION(chosen)])
        regrets.append(float(FUNCTION.optimal_value - y.max()))
        print(f"{name} seed {seed} batch {batch + 1}: regret {regrets[-1]:.4f}", flush=True)
    return {"method": name, "seed": seed, "regret": regrets, "seconds": time.perf_counter() - began}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--batches", type=int, default=6)
    parser.add_argument("--batch", type=int, default=50, help="points of a batch")
    options = parse(parser, seeds=[0], batches=1, batch=4)
    warnings.simplefilter("ignore")
    rows = []
    for seed in options.seeds:
        rows += [run(name, seed, options.batches, options.batch) for name in ("pathgp", "botorch")]
        written = write("bayesian_optimisation", rows, batch=options.batch)
    each = [{"method": row["method"], "seed": row["seed"]} for row in rows]
    for line, row in zip(each, rows, strict=True):
        line |= {str(options.batch * (i + 2)): regret for i, regret in enumerate(row["regret"])}
    print(table(each))
    for name in ("pathgp", "botorch"):
        reached = [row["regret"][-1] <= 0.05 for row in rows if row["method"] == name]
        print(f"{name}: regret at most 0.05 in {sum(reached)} of {len(reached)} runs")
    print("written to", written)


if __name__ == "__main__":
    main()
