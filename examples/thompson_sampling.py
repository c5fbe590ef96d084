"""Thompson sampling in batches of 40: maximise a noisy function of four variables with a file to continue from.

`ThompsonSampler` keeps the data, refits the model as they grow, and writes every batch to a file before its evaluation.
Run the program again and it continues from `thompson.pathgp`; delete the file to start anew. The figure, which needs
matplotlib, shows the regret beside that of uniform points.
"""

import math

import torch
from matplotlib.figure import Figure

import pathgp
from pathgp import kernels
from pathgp.decisions import ThompsonSampler

DIM, BATCH, ROUNDS, NOISE = 4, 40, 5, 0.01
generator = torch.Generator().manual_seed(0)


def function(X: torch.Tensor) -> torch.Tensor:
    """Ackley's function, negated and shifted: its only global maximum is 0, at (0.3, 0.3, 0.3, 0.3)."""
    Z = 4.0 * (X - 0.3)
    hill = 20.0 * torch.exp(-0.2 * Z.square().mean(1).sqrt()) - 20.0
    waves = torch.exp(torch.cos(2.0 * math.pi * Z).mean(1)) - math.e
    return hill + waves


def evaluate(X: torch.Tensor) -> torch.Tensor:
    return function(X) + NOISE * torch.randn(len(X), generator=generator, dtype=X.dtype)


gp = pathgp.GP(kernels.Scale(kernels.Matern(nu=2.5, lengthscale=[1.0] * DIM)), noise=0.1, standardise=True)
sampler = ThompsonSampler(
    gp,
    torch.tensor([[0.0] * DIM, [1.0] * DIM], dtype=torch.float64),
    fit={"steps": 20},
    condition={"features": 256},
    search={"starts": 4, "proposals": 500, "steps": 30},
    checkpoint="thompson.pathgp",
    generator=generator,
)
for _ in range(ROUNDS):
    # Inputs of an interrupted run that have no value yet come first.
    X = sampler.pending if len(sampler.pending) else sampler.ask(BATCH)
    sampler.tell(X, evaluate(X))
    print(sampler)

print(sampler.history)
print("best", [round(x, 3) for x in sampler.best.X.tolist()], f"with value {sampler.best.y:.3f}")

figure = Figure(figsize=(5.5, 3.0), layout="constrained")
axes = figure.subplots()
uniform = torch.rand(len(sampler.y), DIM, generator=generator, dtype=torch.float64)
for label, X in (("uniform points", uniform), ("Thompson sampling", sampler.X)):
    axes.plot(range(1, len(X) + 1), -function(X).cummax(0).values, label=label)
axes.set(yscale="log", xlabel="evaluations", ylabel="regret of the best so far")
axes.legend(frameon=False)
figure.savefig("thompson_sampling.png", dpi=130)
