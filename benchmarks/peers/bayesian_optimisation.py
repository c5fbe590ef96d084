"""Optimise test functions in batches of 100: `ThompsonSampler` compared with BoTorch's paths and with TuRBO-1.

    python -m benchmarks.peers.bayesian_optimisation [hartmann6 ackley10 levy20 ackley20]
                                                     [--methods pathgp botorch turbo] [--seeds 0 1 ... 9]
                                                     [--batch 100] [--rounds 10] [--device cuda]
                                                     [--missing] [--time-limit SECONDS]

"ackley20" is the problem of BoTorch's tutorial on TuRBO. All methods start from the same random batch and make the same
number of evaluations. Every run is written to the file when it ends; the runs of earlier calls stay in it, and with
``--missing`` are not repeated. After ``--time-limit`` no run is begun.

    pathgp   `ThompsonSampler` without options: Matern-5/2, hyperparameters learned when the data have grown by half or
             contradict the model
    botorch  SingleTaskGP, learned in every round, and one joint call of `optimize_acqf` for 100 pathwise samples
    turbo    one trust region (Eriksson et al. 2019), Thompson sampling at perturbed Sobol points; restarts

Regret is the maximum minus the best value so far; seconds are those of a round without the evaluations.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import time
import warnings
from typing import Any

import torch
from torch import Tensor

import pathgp
from benchmarks.common.options import parse
from benchmarks.common.recording import device_name, merge, read, results_file, table
from pathgp import kernels
from pathgp.decisions import ThompsonSampler

try:
    from botorch import test_functions
    from botorch.acquisition.thompson_sampling import PathwiseThompsonSampling
    from botorch.fit import fit_gpytorch_mll
    from botorch.generation import MaxPosteriorSampling
    from botorch.models import SingleTaskGP
    from botorch.models.transforms import Standardize
    from botorch.optim import optimize_acqf
    from gpytorch.mlls import ExactMarginalLogLikelihood
except ImportError:
    raise SystemExit("this comparison needs BoTorch: pip install botorch") from None

PROBLEMS: dict[str, tuple[Any, int, dict[str, Any]]] = {
    "hartmann6": (test_functions.Hartmann, 6, {}),
    "ackley10": (test_functions.Ackley, 10, {}),
    "levy20": (test_functions.Levy, 20, {}),
    "ackley20": (test_functions.Ackley, 20, {"bounds": [(-5.0, 10.0)] * 20}),
}
KEY = ("problem", "method", "seed", "batch", "rounds", "device")


class Pathgp:
    """Our sampler."""

    def __init__(self, X: Tensor, y: Tensor, seed: int) -> None:
        dim = X.shape[1]
        gp = pathgp.GP(kernels.Scale(kernels.Matern(2.5, torch.ones(dim)), 1.0), noise=0.1, standardise=True)
        bounds = torch.stack([torch.zeros(dim), torch.ones(dim)]).to(X)
        self.sampler = ThompsonSampler(gp, bounds, generator=torch.Generator().manual_seed(seed))
        self.sampler.tell(X, y)

    def ask(self, count: int) -> Tensor:
        X: Tensor = self.sampler.ask(count)
        return X

    def tell(self, X: Tensor, y: Tensor) -> None:
        self.sampler.tell(X, y)


def fitted(X: Tensor, y: Tensor) -> Any:
    """BoTorch's model of these data, learned."""
    model = SingleTaskGP(X, y.unsqueeze(1), outcome_transform=Standardize(1))
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    return model.eval()


class Botorch:
    """BoTorch's posterior functions, all maximised by one call."""

    def __init__(self, X: Tensor, y: Tensor, seed: int) -> None:
        torch.manual_seed(seed)
        self.X, self.y = X, y

    def ask(self, count: int) -> Tensor:
        function = PathwiseThompsonSampling(fitted(self.X, self.y))
        bounds = torch.stack([torch.zeros(self.X.shape[1]), torch.ones(self.X.shape[1])]).to(self.X)
        options = {"maxiter": 100}
        X: Tensor = optimize_acqf(function, bounds, q=count, num_restarts=2, raw_samples=64, options=options)[0]
        return X

    def tell(self, X: Tensor, y: Tensor) -> None:
        self.X, self.y = torch.cat([self.X, X]), torch.cat([self.y, y])


class Turbo:
    """A box around the best point that doubles after successes and halves after failures, then starts anew."""

    first, least, largest, successes = 0.8, 0.5**7, 1.6, 10

    def __init__(self, X: Tensor, y: Tensor, seed: int) -> None:
        torch.manual_seed(seed)
        self.seed, self.begins = seed, False
        self._begin(X, y)

    def _begin(self, X: Tensor, y: Tensor) -> None:
        self.X, self.y, self.length, self.wins, self.losses = X, y, self.first, 0, 0

    def ask(self, count: int) -> Tensor:
        dim = self.X.shape[1]
        self.begins = self.length < self.least
        if self.begins:
            return torch.rand(count, dim).to(self.X)
        model = fitted(self.X, self.y)
        centre = self.X[self.y.argmax()]
        kernel = getattr(model.covar_module, "base_kernel", model.covar_module)
        scales = kernel.lengthscale.detach().flatten()
        weights = scales / scales.log().mean().exp()
        lower, upper = ((centre + side * 0.5 * self.length * weights).clamp(0.0, 1.0) for side in (-1.0, 1.0))
        number = min(5000, max(2000, 200 * dim))
        self.seed += 1
        sobol = torch.quasirandom.SobolEngine(dim, scramble=True, seed=self.seed).draw(number).to(self.X)
        changed = torch.rand(number, dim).to(self.X) < min(1.0, 20.0 / dim)
        forced = torch.randint(dim, (number,)).to(changed.device)
        changed[torch.arange(number, device=changed.device), forced] |= ~changed.any(1)
        candidates = torch.where(changed, lower + (upper - lower) * sobol, centre)
        with torch.no_grad():
            X: Tensor = MaxPosteriorSampling(model, replacement=False)(candidates, num_samples=count)
        return X

    def tell(self, X: Tensor, y: Tensor) -> None:
        if self.begins:
            self._begin(X, y)
            return
        best = float(self.y.max())
        is_better = float(y.max()) > best + 1e-3 * abs(best)
        self.wins, self.losses = (self.wins + 1, 0) if is_better else (0, self.losses + 1)
        if self.wins == self.successes:
            self.length, self.wins = min(2.0 * self.length, self.largest), 0
        elif self.losses >= math.ceil(max(4.0, X.shape[1]) / len(X)):
            self.length, self.losses = 0.5 * self.length, 0
        self.X, self.y = torch.cat([self.X, X]), torch.cat([self.y, y])


def run(problem: str, method: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """Regret after every batch, and seconds of every round."""
    make, dim, arguments = PROBLEMS[problem]
    function = make(dim=dim, negate=True, **arguments).to(options.device, torch.float64)
    lower, width = function.bounds[0], function.bounds[1] - function.bounds[0]

    def evaluate(X: Tensor) -> Tensor:
        values: Tensor = function(lower + width * X)
        return values

    start = torch.rand(options.batch, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    X = start.to(options.device)
    y = evaluate(X)
    sampler = {"pathgp": Pathgp, "botorch": Botorch, "turbo": Turbo}[method](X, y, seed)
    best, seconds = float(y.max()), []
    regrets = [function.optimal_value - best]
    for _ in range(options.rounds):
        began = time.perf_counter()
        X = sampler.ask(options.batch).detach()
        float(X.sum())
        seconds.append(time.perf_counter() - began)
        y = evaluate(X)
        sampler.tell(X, y)
        best = max(best, float(y.max()))
        regrets.append(function.optimal_value - best)
    print(
        f"{problem} {method} seed {seed}: regret {regrets[0]:.3g} -> {regrets[-1]:.3g}, {sum(seconds):.0f} s",
        flush=True,
    )
    place = {"problem": problem, "method": method, "seed": seed, "batch": options.batch, "rounds": options.rounds}
    return {**place, "device": options.device, "regret": regrets, "seconds": seconds}


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Medians over the seeds, for every problem and method."""
    lines = []
    for problem, method in sorted({(row["problem"], row["method"]) for row in rows}):
        mine = [row for row in rows if (row["problem"], row["method"]) == (problem, method)]
        line: dict[str, Any] = {"problem": problem, "method": method, "seeds": len(mine)}
        line["regret"] = statistics.median(row["regret"][-1] for row in mine)
        line["seconds_per_round"] = statistics.median(s for row in mine for s in row["seconds"])
        lines.append(line)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("problems", nargs="*", default=list(PROBLEMS))
    parser.add_argument("--methods", nargs="*", default=["pathgp", "botorch", "turbo"])
    parser.add_argument("--seeds", nargs="*", type=int, default=list(range(10)))
    parser.add_argument("--batch", type=int, default=100, help="points of a batch, the first one included")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--device", default=device_name())
    parser.add_argument("--missing", action="store_true", help="leave out runs that the file holds")
    parser.add_argument("--time-limit", type=float, default=math.inf, help="seconds after which no run is begun")
    options = parse(parser, problems=["hartmann6"], seeds=[0], rounds=1, batch=4, device="cpu")
    warnings.simplefilter("ignore")
    name = f"bayesian_optimisation_{options.device.split(':')[0]}"
    done = {tuple(row[part] for part in KEY) for row in read(name)} if options.missing else set()
    began = time.perf_counter()
    for seed, problem, method in itertools.product(options.seeds, options.problems, options.methods):
        place = (problem, method, seed, options.batch, options.rounds, options.device)
        if place not in done and time.perf_counter() - began < options.time_limit:
            merge(name, KEY, run(problem, method, seed, options))
    print(table(summary(read(name))))
    print("results in", results_file(name))


if __name__ == "__main__":
    main()
