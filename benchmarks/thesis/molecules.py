"""Predict properties of molecules from fingerprints with a Tanimoto kernel (thesis, table 4.2, on stand-ins).

    python -m benchmarks.thesis.molecules [F2 JAK2 LCK PPARA PPARD PPARG enamine qm9] [--methods ours sdd sgd svgp]
                                          [--seeds 0] [--rows N] [--time-limit SECONDS] [--memory 5GB] [--epochs 100]

The thesis uses 250,000 molecules of DOCKSTRING, which are not among our data. Stand-ins: the random ZINC molecules that
the authors of DOCKSTRING docked with six targets (15,000 each), and the 50,000 molecules of Enamine's library docked
with 4UNN. Docking scores above 5 are set to 5, as in the thesis. "qm9": the HOMO-LUMO gap of 100,000 molecules of QM9.
The split is random, 85 % for training (QM9: 100,000 molecules): there are no clusters of similar molecules here.

Methods. "ours": `GP.fit` without options but the time limit; "ap", "cg", "sdd", "sgd": one solve of all training rows
with ``--epochs``, at the hyperparameters of an exact fit of 2,000 of them, whose seconds are in the row; "svgp":
GPyTorch, 1,000 random molecules as inducing points, ``--batches`` mini-batches of 1,024 rows, natural gradients and
Adam. Seconds include the predictions. ``peak_gb``: the largest memory of the process so far, or of the device.
"""

from __future__ import annotations

import argparse
import resource
import time
import warnings
from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

import pathgp
from benchmarks.common.datasets import load
from benchmarks.common.options import parse
from benchmarks.common.recording import device_name, merge, read, require, table
from pathgp import kernels, metrics
from pathgp.compute.inputs import read_matrix

DOCKSTRING = ("F2", "JAK2", "LCK", "PPARA", "PPARD", "PPARG")
HIGHEST, QM9_ROWS, EXACT_ROWS, INDUCING, BATCH = 5.0, 100_000, 2000, 1000, 1024
KEY = ("target", "method", "seed", "rows", "device")


def molecules(name: str, seed: int, rows: int | None) -> tuple[Any, Any, Any, Any]:
    """Sparse counts and standardised targets: X, y, X_test, y_test."""
    data = load({"enamine": "enamine50k_docking", "qm9": "qm9"}.get(name, "dockstring_zinc_sample"))
    assert data.y is not None
    y = np.asarray(data.y, dtype=np.float64)
    if name == "qm9":
        y = y[:, [str(target) for target in data.extra["targets"]].index("HOMO_LUMO_gap_au")]
    elif name in DOCKSTRING:
        y = y[:, [str(target) for target in data.extra["targets"]].index(name)]
    if name != "qm9":
        y = np.minimum(y, HIGHEST)
    known = np.random.default_rng(seed).permutation(np.flatnonzero(np.isfinite(y)))
    count = min(QM9_ROWS, int(0.85 * len(known))) if name == "qm9" else int(0.85 * len(known))
    train, test = known[: min(count, rows or count)], known[count:]
    test = test[: None if rows is None else max(1, rows // 2)]
    X, shift, scale = sparse.csr_matrix(data.X, dtype=np.float32), y[train].mean(), y[train].std()
    return X[train], (y[train] - shift) / scale, X[test], (y[test] - shift) / scale


def model() -> pathgp.GP:
    return pathgp.GP(kernels.Scale(kernels.Tanimoto(), 1.0), noise=0.5, mean=pathgp.means.Constant())


def ours(X: Tensor, y: Tensor, Xs: Tensor, seed: int, options: argparse.Namespace) -> tuple[Tensor, Tensor, Any]:
    """`GP.fit` as it is."""
    gp = model()
    limit = None if options.time_limit is None else 0.8 * options.time_limit
    draws: dict[str, Any] = {"samples": options.samples, "features": options.features}
    compute = pathgp.Compute(memory=options.memory)
    gp.fit(X, y, time_limit=limit, compute=compute, generator=torch.Generator().manual_seed(seed), **draws)
    return *predict(gp.posterior, Xs), gp.posterior.report


def one_solve(
    solver: str, X: Tensor, y: Tensor, Xs: Tensor, seed: int, options: argparse.Namespace
) -> tuple[Tensor, Tensor, Any]:
    """Hyperparameters from an exact fit of some rows, then one solve of all."""
    gp, generator = model(), torch.Generator().manual_seed(seed)
    few = torch.randperm(len(y), generator=generator)[:EXACT_ROWS].to(y.device)
    gp.fit(X[few], y[few], estimator="exact", samples=1, features=1, generator=generator)
    draws: dict[str, Any] = {"samples": options.samples, "features": options.features}
    post = gp.condition(X, y, solver=solver, max_epochs=options.epochs, generator=generator, **draws)
    return *predict(post, Xs), post.report


def predict(post: pathgp.Posterior, Xs: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of new observations."""
    with torch.no_grad():
        return post.mean(Xs), post.variance(Xs, noise=True)


def svgp(X: Tensor, y: Tensor, Xs: Tensor, seed: int, options: argparse.Namespace) -> tuple[Tensor, Tensor, None]:
    """GPyTorch. A count c is written as c ones, so that the similarity of sets of tokens is that of the counts."""
    gpytorch = require("gpytorch")

    class Tanimoto(gpytorch.kernels.Kernel):  # type: ignore[name-defined, misc]
        def forward(self, A: Tensor, B: Tensor, diag: bool = False, **_: Any) -> Tensor:
            if diag:
                return A.new_ones(A.shape[:-1])
            common = A @ B.mT
            total = A.sum(-1, keepdim=True) + B.sum(-1, keepdim=True).mT
            return common / (total - common).clamp_min(1.0)

    class Model(gpytorch.models.ApproximateGP):  # type: ignore[name-defined, misc]
        def __init__(self, Z: Tensor) -> None:
            q = gpytorch.variational.NaturalVariationalDistribution(len(Z))
            strategy = gpytorch.variational.VariationalStrategy
            super().__init__(strategy(self, Z, q, learn_inducing_locations=False))
            self.mean_module = gpytorch.means.ConstantMean()
            self.covar_module = gpytorch.kernels.ScaleKernel(Tanimoto())

        def forward(self, A: Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean_module(A), self.covar_module(A))

    torch.manual_seed(seed)
    width = int(torch.cat([X.tokens, Xs.tokens]).max()) + 1  # type: ignore[attr-defined]
    codes, new = (unary(rows, width) for rows in (X, Xs))
    targets = y.float()
    gp = Model(codes[torch.randperm(len(y))[:INDUCING].to(y.device)].float()).to(y.device)
    likelihood = gpytorch.likelihoods.GaussianLikelihood().to(y.device)
    bound = gpytorch.mlls.VariationalELBO(likelihood, gp, len(y))
    natural = gpytorch.optim.NGD(gp.variational_parameters(), num_data=len(y), lr=0.1)
    adam = torch.optim.Adam([*gp.hyperparameters(), *likelihood.parameters()], lr=0.03)
    gp.train()
    for _ in range(options.batches):
        batch = torch.randint(len(y), (min(BATCH, len(y)),), device=y.device)
        natural.zero_grad()
        adam.zero_grad()
        (-bound(gp(codes[batch].float()), targets[batch])).backward()
        natural.step()
        adam.step()
    gp.eval()
    with torch.no_grad():
        parts = [likelihood(gp(part.float())) for part in new.split(BATCH)]
        return torch.cat([p.mean for p in parts]), torch.cat([p.variance for p in parts]), None


def unary(X: Any, width: int) -> Tensor:
    """The tokens of sparse counts as columns of 0 and 1: (n, width), bytes."""
    codes = torch.zeros(len(X), width, dtype=torch.uint8, device=X.device)
    codes[X.rows(), X.tokens] = 1
    return codes


def run(name: str, method: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    X, y, X_test, y_test = molecules(name, seed, options.rows)
    device = torch.device(options.device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    inputs, new = (read_matrix(part).X.to(device) for part in (X, X_test))
    targets = torch.from_numpy(y).to(device)
    if method in ("ours", "svgp"):
        mean, variance, report = {"ours": ours, "svgp": svgp}[method](inputs, targets, new, seed, options)
    else:
        mean, variance, report = one_solve(method, inputs, targets, new, seed, options)
    mean, variance = (part.double().cpu().numpy() for part in (mean, variance))
    spent = time.perf_counter() - began
    row: dict[str, Any] = {"target": name, "method": method, "seed": seed, "rows": len(y), "device": device.type}
    row |= {"r2": 1.0 - float(np.mean((y_test - mean) ** 2) / np.var(y_test)), "seconds": spent}
    row |= {"coverage": metrics.coverage(y_test, mean, variance), "nll": float(metrics.nll(y_test, mean, variance))}
    peak = (
        torch.cuda.max_memory_allocated()
        if device.type == "cuda"
        else resource.getrusage(resource.RUSAGE_SELF)[2] * 1024
    )
    row["peak_gb"] = peak / 1e9
    if report is not None:
        solution = report.solution
        row |= {"used_rows": report.rows, "backend": report.backend, "solver": solution.method}
        row |= {"epochs": solution.epochs, "residual": float(solution.residual.max())}
    print(f"{name} {method} seed {seed}: R2 {row['r2']:.4f}, {spent:.0f} s", flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("targets", nargs="*", default=[*DOCKSTRING, "enamine"])
    parser.add_argument("--methods", nargs="*", default=["ours", "sdd", "sgd", "svgp"])
    parser.add_argument("--seeds", nargs="*", type=int, default=[0])
    parser.add_argument("--rows", type=int, help="largest number of training rows")
    parser.add_argument("--samples", type=int, default=64, help="posterior paths")
    parser.add_argument("--features", type=int, default=512, help="random features of a path")
    parser.add_argument("--epochs", type=float, default=100.0, help="budget of sdd, sgd, ap and cg")
    parser.add_argument("--batches", type=int, default=2000, help="mini-batches of svgp")
    parser.add_argument(
        "--time-limit", type=float, help="seconds of ours: four fifths for the fit, the rest to predict"
    )
    parser.add_argument("--memory", help="budget of ours, such as 5GB")
    parser.add_argument("--device", default=device_name())
    tiny: dict[str, Any] = {"targets": ["F2"], "rows": 60, "samples": 2, "features": 8, "epochs": 3.0, "batches": 2}
    options = parse(parser, **tiny, device="cpu")
    warnings.simplefilter("ignore")
    name = f"molecules_{options.device.split(':')[0]}"
    for target in options.targets:
        for seed in options.seeds:
            for method in options.methods:
                written = merge(name, KEY, run(target, method, seed, options))
    shown = ("target", "method", "seed", "rows", "r2", "coverage", "nll", "seconds", "peak_gb", "solver", "epochs")
    print(table([{part: row.get(part) for part in shown} for row in read(name)]))
    print("written to", written)


if __name__ == "__main__":
    main()
