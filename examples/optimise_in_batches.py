"""Bayesian optimisation in large batches: maximise 50 posterior samples and evaluate at their maxima, four times.

The Hartmann function of six variables has several local maxima; the global one is 3.322. Every batch is one Thompson
sample per path. The paths are functions, so BoTorch's optimiser maximises them with gradients. Needs BoTorch.
"""

import torch
from botorch.acquisition.thompson_sampling import PathwiseThompsonSampling
from botorch.optim import optimize_acqf
from botorch.test_functions import Hartmann

import pathgp
from pathgp import kernels
from pathgp.botorch import PathwiseModel

torch.manual_seed(0)
BATCH, BATCHES = 50, 4
function = Hartmann(dim=6, negate=True)
bounds = torch.tensor([[0.0] * 6, [1.0] * 6], dtype=torch.float64)

X = torch.rand(BATCH, 6, dtype=torch.float64)
y = function(X)
print(f"{len(y):4d} evaluations   best {y.max():.3f}")
for batch in range(BATCHES):
    gp = pathgp.GP(kernels.Scale(kernels.Matern(2.5, torch.ones(6)), 1.0), noise=0.1, standardise=True)
    generator = torch.Generator().manual_seed(batch)
    gp.fit(X, y, steps=30, optimiser="lbfgs", estimator="exact", initialise="data", samples=BATCH, generator=generator)
    samples = PathwiseThompsonSampling(PathwiseModel(gp.posterior))
    options = {"maxiter": 50}
    chosen, _ = optimize_acqf(samples, bounds, q=BATCH, num_restarts=1, raw_samples=16, options=options)
    X, y = torch.cat([X, chosen]), torch.cat([y, function(chosen)])
    print(f"{len(y):4d} evaluations   best {y.max():.3f}   regret {function.optimal_value - y.max():.3f}")
