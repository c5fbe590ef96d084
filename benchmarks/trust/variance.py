"""Accuracy of posterior standard deviations from 64 paths, with and without control variates.

    python -m benchmarks.trust.variance [SET ...] [--rows 3000] [--points 600] [--draws 6]

The reference is the exact posterior, and the systems are solved exactly, so the only error is the sampling error. g_j
is the zero-mean part of path j, with variance v. A control q_j is the zero-mean part of the same path under a posterior
whose variance w is known:

    low rank r     K replaced by its randomly pivoted Cholesky approximation of rank r, for f(X) and its noise alike
    subset r       the exact posterior given the observations at the r pivots alone
    neighbours c   the exact posterior given the c most informative observations for each x (the library uses c = 32)

    sum            mean g^2 + c (w - mean q^2), coefficient c = 1, or the regression coefficient of g^2 on q^2 at each x
    likelihood     for controls with q - g independent of g: maximum likelihood from both, see posterior.path_variance

The error is the root mean square, over test points, of std / exact std - 1; averages over the draws.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

import pathgp
from benchmarks.common.options import parse
from benchmarks.common.recording import table, write
from benchmarks.common.uci import Regression, uci
from pathgp.metrics import nll
from pathgp.pathwise import variance_from_paths
from pathgp.posterior.path_variance import SampledVariance

SETS = ("pol", "elevators", "bike", "protein")
SAMPLES = 64
NEIGHBOURS = (16, 32, 64)


def pivots(K: Tensor, rank: int, generator: torch.Generator) -> Tensor:
    """The pivots of a randomly pivoted Cholesky factorisation, 100 at a time (Chen et al. 2023)."""
    factor, left, chosen = K[:, :0], K.diagonal().clone(), K.new_empty(0, dtype=torch.long)
    while len(chosen) < rank:
        new = torch.multinomial(left, min(100, rank - len(chosen)), generator=generator)
        columns = K[:, new] - factor @ factor[new].T
        values, vectors = torch.linalg.eigh(columns[new])
        keep = values > 1e-6 * values.max()
        factor = torch.cat([factor, columns @ (vectors[:, keep] / values[keep].sqrt())], 1)
        chosen = torch.cat([chosen, new])
        left = (K.diagonal() - factor.square().sum(1)).clamp_min(0.0)
        left[chosen] = 0.0
    return chosen


class Problem:
    """One data set with its exact posterior, and what the controls need of the paths."""

    def __init__(self, data: Regression, points: int) -> None:
        self.data, self.noise = data, data.noise**2
        self.X, self.Xs, self.y = data.X, data.X_test[:points], data.y_test[:points]
        kernel = data.kernel().requires_grad_(False)
        self.K, self.cross, self.prior = kernel(self.X), kernel(self.Xs, self.X), kernel.diag(self.Xs)
        factor = torch.linalg.cholesky(self.K + self.noise * torch.eye(len(self.X), dtype=self.K.dtype))
        half = torch.linalg.solve_triangular(factor, self.cross.T, upper=False)
        self.exact = self.prior - half.square().sum(0)
        self.mean = half.T @ torch.linalg.solve_triangular(factor, data.y.unsqueeze(1), upper=False).squeeze(1)
        self.nll = nll(self.y, self.mean, self.exact + self.noise)

    def posterior(self, seed: int) -> pathgp.Posterior:
        """64 paths, their systems solved exactly."""
        gp = pathgp.GP(self.data.kernel(), noise=self.data.noise)
        generator = torch.Generator().manual_seed(seed)
        return gp.condition(self.X, self.data.y, samples=SAMPLES, solver="cholesky", generator=generator)

    def subset(self, chosen: Tensor, f: Tensor, draws: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        H = self.K[chosen][:, chosen] + self.noise * torch.eye(len(chosen), dtype=f.dtype)
        b = torch.linalg.solve(H, self.cross[:, chosen].T)
        return f - (draws + noise)[:, chosen] @ b, self.prior - (b * self.cross[:, chosen].T).sum(0)

    def low_rank(self, chosen: Tensor, f: Tensor, draws: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        tall, square, cross = self.K[:, chosen], self.K[chosen][:, chosen], self.cross[:, chosen]
        square = square + 1e-8 * square.diagonal().mean() * torch.eye(len(chosen), dtype=f.dtype)
        inner = self.noise * square + tall.T @ tall
        # The part of each draw that the pivots determine, and its posterior given that part plus noise.
        seen = draws[:, chosen] @ torch.linalg.solve(square, tall.T) + noise
        q = f - (seen @ tall) @ torch.linalg.solve(inner, cross.T)
        left = self.prior - (cross * torch.linalg.solve(square, cross.T).T).sum(1)
        return q, left + self.noise * (cross * torch.linalg.solve(inner, cross.T).T).sum(1)


def estimates(problem: Problem, seed: int, chosen: dict[int, Tensor]) -> Iterator[tuple[str, Tensor, float]]:
    """(name, variances, seconds): with the evaluation of the paths, without the solve."""
    post = problem.posterior(seed)
    assert post.prior is not None
    began = time.perf_counter()
    f, h = post.prior(problem.Xs), post._update(post.weights[:, 1:])(problem.Xs)
    paths = time.perf_counter() - began
    g = f - h
    mean_square = g.square().mean(0)
    yield "mean square", mean_square, paths
    yield "likelihood, prior variance", variance_from_paths(g, h, problem.prior), paths
    system = post.system
    draws, noise = system.targets[:, 1:].T, problem.data.noise * system.noise_draws.T
    for rank in chosen:
        for kind in ("low rank", "subset"):
            began = time.perf_counter()
            control = problem.low_rank if kind == "low rank" else problem.subset
            q, w = control(chosen[rank], f, draws, noise)
            spent = paths + time.perf_counter() - began
            square = q.square().mean(0)
            spread = q.square() - square
            slope = ((g.square() - mean_square) * spread).sum(0) / spread.square().sum(0)
            floor = 0.1 * mean_square
            yield f"{kind} {rank}, sum, c = 1", torch.maximum(mean_square + w - square, floor), spent
            yield f"{kind} {rank}, sum, regression", torch.maximum(mean_square + slope * (w - square), floor), spent
            if kind == "subset":
                yield f"subset {rank}, likelihood", variance_from_paths(g, q - g, w), spent
    for count in NEIGHBOURS:
        estimate = SampledVariance(post.model.kernel, system, post.prior, post.weights[:, 1:], pathgp.Compute(), count)
        began = time.perf_counter()
        variance = estimate(problem.Xs)
        yield f"neighbours {count}, likelihood", variance, time.perf_counter() - began


def study(name: str, rows: int, points: int, draws: int, ranks: list[int]) -> list[dict[str, Any]]:
    """All estimators on one data set, averaged over independent sets of paths."""
    problem = Problem(uci(name, dtype=torch.float64, rows=rows), points)
    chosen = {rank: pivots(problem.K, rank, torch.Generator().manual_seed(0)) for rank in ranks}
    found: dict[str, list[tuple[float, float, float]]] = {}
    for seed in range(draws):
        for estimator, variance, spent in estimates(problem, seed, chosen):
            error = float(((variance / problem.exact).sqrt() - 1.0).square().mean().sqrt())
            excess = nll(problem.y, problem.mean, variance + problem.noise) - problem.nll
            found.setdefault(estimator, []).append((error, excess, spent))
    return [
        {
            "set": name,
            "estimator": estimator,
            "error of std": statistics.mean(each[0] for each in values),
            "nll - exact": statistics.mean(each[1] for each in values),
            "its spread": statistics.stdev(each[1] for each in values),
            "ms per 1000 rows": 1e6 / points * statistics.median(each[2] for each in values),
        }
        for estimator, values in found.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sets", nargs="*", default=list(SETS))
    parser.add_argument("--rows", type=int, default=3000, help="training rows")
    parser.add_argument("--points", type=int, default=600, help="test rows")
    parser.add_argument("--ranks", nargs="*", type=int, default=[100, 500, 1000], help="of the low-rank controls")
    parser.add_argument("--draws", type=int, default=6, help="independent sets of 64 paths")
    arguments = parse(parser, sets=["pol"], rows=200, points=20, draws=2, ranks=[20])
    rows: list[dict[str, Any]] = []
    with torch.no_grad():
        for name in arguments.sets:
            rows += study(name, arguments.rows, arguments.points, arguments.draws, arguments.ranks)
            print(table([row for row in rows if row["set"] == name]), flush=True)
    print("written to", write("variance", rows, training_rows=arguments.rows, samples=SAMPLES, draws=arguments.draws))


if __name__ == "__main__":
    main()
