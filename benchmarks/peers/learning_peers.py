"""Learning and prediction compared with GPyTorch: same split, model, start, optimiser and number of steps.

    python -m benchmarks.peers.learning_peers [SET ...] [--steps 100] [--gpytorch-steps K] [--modes cholesky cg]

Matern-3/2 with a length scale per input, zero mean, float32, all hyperparameters 1 at the start, Adam at rate 0.1.
Seconds include the fit and mean and variance at the test inputs. Test log-likelihoods are means over the test points,
with standardised targets.

GPyTorch learns variances behind a softplus, pathgp standard deviations. GPyTorch also keeps the noise variance above
1e-4. Both start from the same model, but their steps differ. Its modes: ``cholesky``, no iterative method; ``cg``,
conjugate gradients for everything, 64 probes, otherwise its defaults: preconditioner of rank 15, residuals to 1.0 in
training and to 0.01 in prediction. With only K steps its training time is extrapolated linearly, which favours ``cg``,
because its later steps are harder. There is no log-likelihood then.

pathgp: ``adam`` takes all steps with the default solver, ``lbfgs`` ends early. Both run with several generators: times
are medians, log-likelihoods means. After the timed runs, the test log-likelihood is evaluated along the trajectory of
the first generator. It gives the seconds until the log-likelihood is within 0.01 of the best value of either, including
the solve for the posterior there. All points of both curves use the same draws.
"""

from __future__ import annotations

import argparse
import math
import warnings
from dataclasses import replace
from itertools import accumulate
from statistics import fmean, median
from typing import Any

import torch
from torch import Tensor

import pathgp
from benchmarks.common.fits import THESIS_FIT
from benchmarks.common.options import parse
from benchmarks.common.recording import device_name, merge, results_file, seconds, table
from benchmarks.common.uci import UCI, Regression, Split, uci
from benchmarks.thesis.table_5_1 import RATE, SAMPLES, initial, move, warm_up
from pathgp.learning.report import FitReport
from pathgp.metrics import nll

MARGIN = 0.01


def gpytorch_row(data: Split, mode: str, steps: int, measured: int) -> dict[str, Any]:
    """One mode of GPyTorch; a mode that breaks down is recorded as failed."""
    try:
        import gpytorch
    except ImportError:
        raise SystemExit("this comparison needs GPyTorch: pip install gpytorch, or --modes without a name") from None

    class Model(gpytorch.models.ExactGP):
        def __init__(self) -> None:
            super().__init__(data.X, data.y, gpytorch.likelihoods.GaussianLikelihood())
            self.mean = gpytorch.means.ZeroMean()
            matern = gpytorch.kernels.MaternKernel(nu=1.5, ard_num_dims=data.X.shape[1])
            self.kernel = gpytorch.kernels.ScaleKernel(matern)
            matern.lengthscale, self.kernel.outputscale, self.likelihood.noise = 1.0, 1.0, 1.0

        def forward(self, X: Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean(X), self.kernel(X))

    model = Model().to(data.X.device)
    likelihood = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)
    adam = torch.optim.Adam(model.parameters(), lr=RATE)
    predicted: list[Tensor] = []

    def fit() -> None:
        model.train()
        for _ in range(measured):
            adam.zero_grad()
            loss = -likelihood(model(data.X), data.y)
            loss.backward()
            adam.step()

    def predict() -> None:
        model.eval()
        with torch.no_grad():
            observed = model.likelihood(model(data.X_test))
            predicted.extend([observed.mean, observed.variance])

    settings = gpytorch.settings
    direct = mode == "cholesky"
    row = {"method": f"gpytorch {mode}", "measured_steps": measured}
    with (
        warnings.catch_warnings(record=True) as caught,
        settings.max_cholesky_size(10**9 if direct else 0),
        settings.fast_computations(covar_root_decomposition=not direct, log_prob=not direct, solves=not direct),
        settings.num_trace_samples(SAMPLES),
    ):
        warnings.simplefilter("always")
        try:
            fitted, asked = seconds(fit), seconds(predict)
            mean, variance = predicted
            if not bool(torch.isfinite(mean).all() & torch.isfinite(variance).all()):
                raise ValueError("NaN in the predictions")
            # Checked also where no score is kept: a variance that is not positive is a failure.
            score = -nll(data.y_test, mean, variance)
        except (RuntimeError, ValueError) as error:  # NotPSDError and NanError are RuntimeErrors
            return {**row, "failed": f"{type(error).__name__}: {error}"}
    whole = measured == steps
    return {
        **row,
        "extrapolated": not whole,
        "seconds": fitted * steps / measured + asked,
        "fit_seconds": fitted * steps / measured,
        "predict_seconds": asked,
        "log_likelihood": score if whole else None,
        "steps_taken": steps,
        "warnings": len(caught),
    }


# Our ways by name: the options of `fit`. Adam takes as many steps as the others do; L-BFGS may end early.
WAYS: dict[str, dict[str, Any]] = {
    "adam": {"min_gain": 0.0},
    "adam, coarse": {"min_gain": 0.0, "stages": "coarse"},
    "lbfgs": {"optimiser": "lbfgs"},
}


def ours(data: Regression, way: str, steps: int, generators: int) -> tuple[dict[str, Any], FitReport]:
    """pathgp in one of its ways; also the report of the first generator."""
    fits, predictions, scores, reports = [], [], [], []
    for seed in range(generators):
        gp = initial(data)
        predicted: list[Any] = []

        def fit(gp: pathgp.GP = gp, seed: int = seed) -> None:
            generator = torch.Generator().manual_seed(seed)
            options = THESIS_FIT | WAYS[way]
            reports.append(gp.fit(data.X, data.y, steps=steps, learning_rate=RATE, generator=generator, **options))

        def predict(gp: pathgp.GP = gp, predicted: list[Any] = predicted) -> None:
            predicted.append(gp.posterior.mean(data.X_test))
            predicted.append(gp.posterior.variance(data.X_test, noise=True))

        fits.append(seconds(fit))
        predictions.append(seconds(predict))
        scores.append(-nll(data.y_test, *predicted))
    row = {
        "method": f"pathgp {way}",
        "seconds": median(a + b for a, b in zip(fits, predictions, strict=True)),
        "fit_seconds": median(fits),
        "predict_seconds": median(predictions),
        "log_likelihood": fmean(scores),
        "scores": scores,
        "steps_taken": fmean(len(report.history) for report in reports),
        "epochs": fmean(report.epochs for report in reports),
        "solvers": sorted({step.method for report in reports for step in report.history}),
        "above_tol": sum(step.status != "CONVERGED" for report in reports for step in report.history),
    }
    return row, reports[0]


class Curve:
    """Test log-likelihood at the hyperparameters of single steps of a fit, evaluated where it is asked for."""

    def __init__(self, data: Regression, report: FitReport) -> None:
        self.data, self.history = data, report.history
        self.clock = list(accumulate(step.seconds for step in report.history))
        self.known: dict[int, float] = {}

    def __getitem__(self, step: int) -> float:
        if step not in self.known:
            gp, data = initial(self.data), self.data
            move(gp, self.history[step].values)
            try:
                posterior = gp.condition(data.X, data.y, generator=torch.Generator().manual_seed(0))
            except (RuntimeError, ValueError):  # hyperparameters that ran away
                self.known[step] = -math.inf
                return -math.inf
            self.known[step] = -nll(
                data.y_test, posterior.mean(data.X_test), posterior.variance(data.X_test, noise=True)
            )
        return self.known[step]

    def best(self, every: int) -> float:
        """The highest value on a grid of steps that ends with the last one."""
        return max(self[step] for step in range(len(self.history) - 1, -1, -every))

    def first_within(self, level: float) -> int | None:
        """The first step at this level: the first one known, then the unknown ones before it."""
        reached = [step for step in sorted(self.known) if self[step] >= level]
        if not reached:
            return None
        step = reached[0]
        while step - 1 not in self.known and step and self[step - 1] >= level:
            step -= 1
        return step


def times_to_best(data: Regression, reports: dict[str, FitReport], every: int) -> dict[str, dict[str, Any]]:
    """For every optimiser: step and seconds at which its model first predicted nearly as well as the best of all."""
    curves = {name: Curve(data, report) for name, report in reports.items()}
    level = max((curve.best(every) for curve in curves.values()), default=math.nan) - MARGIN
    found = {}
    for name, curve in curves.items():
        step = curve.first_within(level)
        found[name] = {
            "level": level,
            "step_within": step,
            "seconds_within": None if step is None else curve.clock[step],
            "curve": [
                [step, curve.clock[step], curve.known[step]]
                for step in sorted(curve.known)
                if math.isfinite(curve[step])
            ],
        }
    return found


def compare(name: str, options: argparse.Namespace, device: str) -> list[dict[str, Any]]:
    """One data set: pathgp, its way to the best, GPyTorch, and how many times as long that took; written as it goes."""
    data = uci(name, options.split, device=device, rows=options.rows_of_data or None)
    about = {"set": name, "split": options.split, "n": len(data.X), "steps": options.steps}
    few = replace(data, X=data.X[:512], y=data.y[:512], X_test=data.X_test[:8], y_test=data.y_test[:8])
    warm_up(few)
    for mode in options.modes:
        gpytorch_row(few, mode, 1, 1)
    rows: dict[str, dict[str, Any]] = {}
    reports: dict[str, FitReport] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pathgp.ConvergenceWarning)
        for way in options.ways:
            try:
                row, reports[way] = ours(data, way, options.steps, options.generators)
            except (RuntimeError, ValueError) as error:
                row = {"method": f"pathgp {way}", "failed": f"{type(error).__name__}: {error}"}
            rows[way] = about | row
            record(rows[way], device)
        for way, found in times_to_best(data, reports, options.every).items():
            rows[way] |= found
            record(rows[way], device)
    reports.clear()
    measured = min(options.gpytorch_steps or options.steps, options.steps)
    for mode in options.modes:
        if device == "cuda":
            torch.cuda.empty_cache()  # each method starts with the whole device
        rows[mode] = about | gpytorch_row(data, mode, options.steps, measured)
        for way in options.ways:
            if "seconds" in rows[mode] and "seconds" in rows[way]:
                rows[mode][f"times {way}"] = rows[mode]["seconds"] / rows[way]["seconds"]
        record(rows[mode], device)
    return list(rows.values())


def record(row: dict[str, Any], device: str) -> None:
    """Print a row and write it; what the file holds about other sets, sizes and methods stays."""
    shown = {k: v for k, v in row.items() if k not in ("curve", "scores")}
    print("  ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in shown.items()), flush=True)
    name = f"learning_peers_{device}"
    merge(name, ("set", "split", "n", "steps", "method"), row)


def main() -> None:
    device = device_name()
    large = device == "cuda"
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sets", nargs="*", help="data sets; pol, elevators and bike on a GPU, elevators on a CPU")
    parser.add_argument("--split", type=int, default=0)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--gpytorch-steps", type=int, default=0 if large else 3, help="measure so many; 0 for all")
    parser.add_argument("--modes", nargs="*", choices=("cholesky", "cg"), default=["cholesky", "cg"])
    parser.add_argument("--ways", nargs="*", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--generators", type=int, default=4)
    parser.add_argument("--every", type=int, default=5, help="grid of steps on which the best likelihood is looked for")
    parser.add_argument("--rows-of-data", type=int, default=0, help="training rows; 0 takes all")
    options = parse(
        parser, sets=["pol"], steps=2, gpytorch_steps=1, rows_of_data=100, generators=1, every=1, ways=["adam"]
    )
    rows: list[dict[str, Any]] = []
    names = options.sets or (list(UCI[:3]) if large else ["elevators"])
    for name in names:
        rows += compare(name, options, device)
    keys = ["set", "n", "method", "seconds", "fit_seconds", "predict_seconds", "log_likelihood", "steps_taken"]
    keys += ["seconds_within", *(f"times {way}" for way in WAYS), "extrapolated", "failed"]
    print("\n" + table([{key: row.get(key) for key in keys} for row in rows]))
    print("written to", results_file(f"learning_peers_{device}"))


if __name__ == "__main__":
    main()
