"""Sparse methods compared with GPyTorch: SGPR and SVGP with the same points, kernel, start and number of steps.

    python -m benchmarks.peers.inducing [SET ...] [--inducing 500] [--steps 50] [--batches 500] [--rows N] [--quick]

Matern-3/2 with a length scale per input, zero mean, float64, all hyperparameters 1 at the start, inducing points fixed
at the same random rows. SGPR: Adam at rate 0.1. SVGP: batches of 1,024 rows, Adam at rate 0.03 for the hyperparameters,
natural gradient steps of 0.1 for q(u) in both packages. GPyTorch learns variances, pathgp standard deviations, so that
their steps differ; after enough steps both are at the same optimum.

The file keeps the rows of other sets. Columns: seconds of the fit and of the predictions, the bound per row at the
learned hyperparameters (that of SGPR for all, computed by pathgp), root mean square error and mean test log-likelihood.
The last two rows of a set predict at pathgp's own hyperparameters: there the posteriors of both packages are the same
function, ``difference`` says how
closely, in standard deviations of the prediction. GPyTorch's SGPR learns by the bound, and by default predicts with the
training covariance of FITC (its diagonal correction). In the row at our hyperparameters the correction is off: the mean
is then that of SGPR, but the variances are those of SoR, so that its log-likelihood differs from ours.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import pathgp
from benchmarks.common.options import parse
from benchmarks.common.recording import device_name, merge, read, require, seconds, table
from benchmarks.common.uci import UCI, Regression, uci
from pathgp import kernels

BATCH, RATE, STOCHASTIC_RATE, NATURAL = 1024, 0.1, 0.03, 0.1
Prediction = tuple[Tensor, Tensor]


def metrics(data: Regression, prediction: Prediction) -> dict[str, float]:
    """Root mean square error and mean log-likelihood of the test rows."""
    mean, variance = prediction
    error = data.y_test - mean
    score = -0.5 * (error.square() / variance + torch.log(2 * torch.pi * variance))
    return {"rmse": float(error.square().mean().sqrt()), "test_ll": float(score.mean())}


def model_of(values: dict[str, Any], Z: Tensor, method: str) -> pathgp.InducingGP:
    """Our model at given hyperparameters: standard deviations ``signal`` and ``noise``, and length scales."""
    kernel = kernels.Scale(kernels.Matern(1.5, values["lengthscale"]), values["signal"])
    return pathgp.InducingGP(kernel, values["noise"], Z, method)


def bound_per_row(data: Regression, Z: Tensor, values: dict[str, Any]) -> float:
    """The bound of SGPR at given hyperparameters."""
    post = model_of(values, Z, "sgpr").condition(data.X, data.y, samples=0)
    return post.log_marginal_likelihood().value / len(data.y)


def ours(data: Regression, Z: Tensor, method: str, steps: int) -> tuple[dict[str, Any], dict[str, Any], Prediction]:
    """Fit and predict with pathgp; the row, the hyperparameters, and mean and variance at the test rows."""
    start = {"lengthscale": torch.ones(data.X.shape[1]), "signal": 1.0, "noise": 1.0}
    gp, predicted = model_of(start, Z, method), []
    rate = RATE if method == "sgpr" else STOCHASTIC_RATE
    options: dict[str, Any] = {"steps": steps, "optimiser": "adam", "learning_rate": rate, "initialise": "model"}
    options |= {"min_gain": 0.0, "samples": 1, "generator": torch.Generator().manual_seed(0)}
    fit = seconds(lambda: gp.fit(data.X, data.y, **options))
    post = gp.posterior
    predict = seconds(lambda: predicted.append((post.mean(data.X_test), post.variance(data.X_test, noise=True))))
    found = gp.hyperparameters()
    row = {"set": data.name, "method": f"pathgp {method}", "fit": fit, "predict": predict}
    return row, found, predicted[0]


def theirs(
    data: Regression, Z: Tensor, method: str, steps: int, values: dict[str, Any] | None = None
) -> tuple[dict[str, Any], dict[str, Any], Prediction]:
    """The same with GPyTorch; at given hyperparameters ``values`` only q(u) is learned, by full natural steps."""
    gpytorch = require("gpytorch")

    def covariance() -> Any:
        matern = gpytorch.kernels.MaternKernel(nu=1.5, ard_num_dims=data.X.shape[1])
        kernel = gpytorch.kernels.ScaleKernel(matern).to(data.X)
        given = values or {"lengthscale": 1.0, "signal": torch.tensor(1.0), "noise": torch.tensor(1.0)}
        matern.lengthscale, kernel.outputscale = given["lengthscale"], given["signal"] ** 2
        # GPyTorch refuses a variance below its bound of 1e-4.
        likelihood.noise_covar.raw_noise_constraint.lower_bound.fill_(min(1e-4, 0.5 * float(given["noise"]) ** 2))
        likelihood.noise = given["noise"] ** 2
        return kernel

    likelihood = gpytorch.likelihoods.GaussianLikelihood().to(data.X)
    make = sgpr_of if method == "sgpr" else svgp_of
    gp, train = make(gpytorch, data, Z, covariance(), likelihood, steps, values is None)
    predicted: list[Prediction] = []

    def predict() -> None:
        gp.eval()
        likelihood.eval()
        # Its default is to predict by FITC; without the correction it predicts by SoR, whose mean is that of SGPR.
        with torch.no_grad(), gpytorch.settings.sgpr_diagonal_correction(values is None):
            observed = likelihood(gp(data.X_test))
            predicted.append((observed.mean, observed.variance))

    with gpytorch.settings.cholesky_jitter(double_value=1e-10), gpytorch.settings.max_cholesky_size(10**6):
        fit, took = seconds(train), seconds(predict)
    scale, base = gp.kernel, gp.base
    found = {
        "lengthscale": base.lengthscale.detach().flatten(),
        "signal": scale.outputscale.detach().sqrt(),
        "noise": likelihood.noise.detach().sqrt().squeeze(),
    }
    return {"set": data.name, "method": f"gpytorch {method}", "fit": fit, "predict": took}, found, predicted[0]


def sgpr_of(
    gpytorch: Any, data: Regression, Z: Tensor, kernel: Any, likelihood: Any, steps: int, learns: bool
) -> tuple[Any, Callable[[], None]]:
    """GPyTorch's SGPR with fixed points, and the function that trains it."""

    class Collapsed(gpytorch.models.ExactGP):
        def __init__(self) -> None:
            super().__init__(data.X, data.y, likelihood)
            self.mean, self.kernel, self.base = gpytorch.means.ZeroMean(), kernel, kernel.base_kernel
            self.covariance = gpytorch.kernels.InducingPointKernel(kernel, Z.clone(), likelihood)
            self.covariance.inducing_points.requires_grad_(False)

        def forward(self, X: Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean(X), self.covariance(X))

    gp = Collapsed()
    bound = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, gp)

    def train() -> None:
        gp.train()
        likelihood.train()
        adam = torch.optim.Adam([p for p in gp.parameters() if p.requires_grad], lr=RATE)
        for _ in range(steps if learns else 0):
            adam.zero_grad()
            (-bound(gp(data.X), data.y)).backward()
            adam.step()

    return gp, train


def svgp_of(
    gpytorch: Any, data: Regression, Z: Tensor, kernel: Any, likelihood: Any, steps: int, learns: bool
) -> tuple[Any, Callable[[], None]]:
    """GPyTorch's SVGP with fixed points and natural gradients, and the function that trains it."""

    class Variational(gpytorch.models.ApproximateGP):
        def __init__(self) -> None:
            q = gpytorch.variational.NaturalVariationalDistribution(len(Z))
            strategy = gpytorch.variational.VariationalStrategy(self, Z.clone(), q, learn_inducing_locations=False)
            super().__init__(strategy)
            self.mean, self.kernel, self.base = gpytorch.means.ZeroMean(), kernel, kernel.base_kernel

        def forward(self, X: Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean(X), self.kernel(X))

    gp = Variational().to(data.X)
    bound = gpytorch.mlls.VariationalELBO(likelihood, gp, num_data=len(data.y))
    generator = torch.Generator().manual_seed(0)

    def train() -> None:
        gp.train()
        likelihood.train()
        natural = gpytorch.optim.NGD(gp.variational_parameters(), num_data=len(data.y), lr=NATURAL if learns else 1.0)
        adam = torch.optim.Adam([*kernel.parameters(), *likelihood.parameters()], lr=STOCHASTIC_RATE)
        for _ in range(steps if learns else 2):
            order = torch.randperm(len(data.y), generator=generator)
            batch = order[:BATCH] if learns else order
            natural.zero_grad()
            adam.zero_grad()
            (-bound(gp(data.X[batch]), data.y[batch])).backward()
            natural.step()
            if learns:
                adam.step()

    return gp, train


def compare(data: Regression, inducing: int, steps: int, batches: int) -> list[dict[str, Any]]:
    """The rows of one set."""
    chosen = torch.randperm(len(data.y), generator=torch.Generator().manual_seed(0))[:inducing]
    Z, rows = data.X[chosen.to(data.X.device)], []
    for method, count in (("sgpr", steps), ("svgp", batches)):
        row, values, expected = ours(data, Z, method, count)
        rows.append(row | {"bound": bound_per_row(data, Z, values)} | metrics(data, expected))
        row, theirs_values, prediction = theirs(data, Z, method, count)
        rows.append(row | {"bound": bound_per_row(data, Z, theirs_values)} | metrics(data, prediction))
        row, _, prediction = theirs(data, Z, method, 0, values)
        apart = (prediction[0] - expected[0]).abs() / expected[1].sqrt()
        row |= {"method": f"{row['method']} at ours", "bound": rows[-2]["bound"]} | metrics(data, prediction)
        rows.append(row | {"difference": float(apart.max())})
    return [{"difference": None, **row} for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="*", default=list(UCI[:4]), help="UCI sets")
    parser.add_argument("--inducing", type=int, default=500)
    parser.add_argument("--steps", type=int, default=50, help="of SGPR")
    parser.add_argument("--batches", type=int, default=500, help="of SVGP")
    parser.add_argument("--rows", type=int, default=None, help="training rows, by default all")
    parser.add_argument("--device", default=device_name())
    options = parse(parser, sets=["elevators"], inducing=50, steps=5, batches=5, rows=600)
    for name in options.sets:
        data = uci(name, dtype=torch.float64, device=options.device, rows=options.rows)
        facts = {"n": len(data.y), "inducing": options.inducing, "steps": options.steps, "batches": options.batches}
        for row in compare(data, options.inducing, options.steps, options.batches):
            merge(f"inducing_peers_{options.device}", ("set", "n", "inducing", "method"), facts | row)
        print(table(read(f"inducing_peers_{options.device}")), flush=True)


if __name__ == "__main__":
    main()
