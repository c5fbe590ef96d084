"""Table 6.1 of the thesis: extrapolation of the learning curves of 2,000 networks over 52 epochs.

    python -m benchmarks.thesis.table_6_1 [--sets APSFailure ...] [--seeds 0 1 2] [--steps 100] [--probes 64]
                                          [--rows 2000] [--default] [--sparse 1000] [--vnngp 32] [--table]
                                          [--baseline-steps N] [--baseline-rate 0.01]
                                          [--botorch float32 float64] [--measured-steps 10]
                                          [--preconditioner auto] [--memory 8GB] [--device cpu] [--processes 1]

The protocol:

- kernel: squared exponential x squared exponential with one signal scale and a length scale per hyperparameter, on the
  7 hyperparameters standardised over all 2,000 configurations and on log(epoch) / log(53); zero mean;
- data: 10 % of the curves are complete; of each other curve the first j epochs are observed, j uniform on 0..51 (a few
  are not observed at all); values are standardised by mean and standard deviation of the observed final ones;
- learning: GPyTorch's initial values and its lower bound of 0.01 on the noise; 100 Adam steps at 0.1, solves to 0.01;
- scores: variances are those of 64 samples plus the noise; NLL and RMSE are means over all observed (train) and all
  missing cells (test).

Details that the thesis does not state follow its authors' published scripts, with two differences: float32 instead of
float64, and the mean from its own linear system instead of the average of 64 samples.

A row is one set and seed. Each is measured in its own process, ``--processes`` at a time (times are then those of a
shared machine). It holds the seconds of the fit; the seconds of mean, variance and 64 samples of all cells; the
processor time of the fit, since other processes may use the machine; and the peak memory minus that of the process with
its data (GPU: of the allocator). A fit with fewer than 64 probes is conditioned again with 64 samples. Rows that are
already in the file are not measured again, unless with ``--again``.

``--default`` adds the default fit of pathgp with the same kernels, bounds and samples: fewer steps, from the optimum of
sub-grids.

``--sparse`` and ``--vnngp`` add a sparse variational GP of GPyTorch with the given number of inducing points, and a
variational nearest-neighbour GP with the given number of neighbours: see peers/baselines.py. They have the same kernels
and are trained for the seconds of our fit and prediction. With ``--baseline-steps`` they take this number of steps, and
ours is not run. The sparse baselines of the thesis's table had 6 to 26 minutes (SVGP: 10,000 inducing points). Their
results are known for seven sets; this one can be ranked on all.

``--botorch`` times BoTorch's LatentKroneckerGP with the same kernels, probes and tolerance and a preconditioner of rank
100, in the given dtypes. Whole fits take too long: ``--measured-steps`` single steps are timed at evenly spaced
hyperparameters of our fit of the same set and seed, and their mean is multiplied by the number of steps. Our fit
includes the solve for its posterior. BoTorch's posterior on this grid needs a dense matrix of all cells
(``posterior_gb``) and is not computed.

With fewer than 2,000 ``--rows`` (configurations) the problem differs; use this for experiments. The file keeps the rows
of earlier runs. ``--table`` prints means over the seeds and the thesis's numbers.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

import pathgp
from benchmarks.common.datasets import load
from benchmarks.common.fits import THESIS_FIT
from benchmarks.common.options import parse
from benchmarks.common.peak import Peak
from benchmarks.common.recording import device_name, merge, row_key, seconds, stored
from benchmarks.peers.baselines import Baseline, add_options, chosen_baselines, run_baseline
from benchmarks.thesis.lcbench_curves import SETS, Curves, curves, model, names
from benchmarks.thesis.table_6_1_show import CONCLUSION as CONCLUSION
from benchmarks.thesis.table_6_1_show import KEY, beside_sparse, show
from benchmarks.thesis.table_6_1_show import PROTOCOL as PROTOCOL
from benchmarks.thesis.table_6_1_show import explain as explain
from benchmarks.thesis.table_6_1_show import notes as notes
from benchmarks.thesis.table_6_1_show import table_cells as table_cells
from pathgp import solvers
from pathgp.metrics import coverage, nll, rmse

TITLE = "Learning curves"
RESULTS = ("lcbench_cuda", "lcbench_cpu")
SAMPLES, RATE, TOL, RANK = 64, 0.1, 0.01, 100
PRECONDITIONERS: dict[str, Any] = {
    "auto": "auto",
    "none": solvers.CG(preconditioner=None),
    "pivoted": solvers.CG(preconditioner=solvers.PivotedCholesky(RANK)),
    "random": solvers.CG(preconditioner=solvers.RandomlyPivotedCholesky(RANK)),
    "blocks": solvers.CG(preconditioner=solvers.GridBlocks()),
    "grid": solvers.CG(preconditioner=solvers.GridInverse()),
}
# BoTorch's model in each precision, as a method.
PEERS = {"float32": "botorch32", "float64": "botorch64"}


def ours(data: Curves, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """Fit as the thesis does, predict, score."""
    solver = PRECONDITIONERS[options.preconditioner]
    learning = {"steps": options.steps, "learning_rate": RATE, "solver": solver, "tol": TOL, "min_gain": 0.0}
    return {"method": "pathgp", **fit_and_score(data, seed, options, **learning, **THESIS_FIT)}


def default(data: Curves, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """The same kernels and bounds with the default fit."""
    return {"method": "pathgp default", **fit_and_score(data, seed, options)}


def fit_and_score(data: Curves, seed: int, options: argparse.Namespace, **learning: Any) -> dict[str, Any]:
    """Fit with these options, predict, score."""
    gp, reports, found = model(data), [], {}
    compute = pathgp.Compute(memory=options.memory)
    generator = torch.Generator().manual_seed(seed)

    def fit() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", pathgp.ConvergenceWarning)
            warnings.simplefilter("ignore", pathgp.LongFitWarning)
            drawn = {"samples": options.probes, "generator": generator}
            report = gp.fit([data.X, data.T], data.given, compute=compute, **drawn, **learning)
        reports.append(report)

    def predict() -> None:
        post = gp.posterior
        if options.probes < SAMPLES:
            solver = PRECONDITIONERS[options.preconditioner]
            drawn = {"samples": SAMPLES, "generator": generator}
            post = gp.condition([data.X, data.T], data.given, solver=solver, compute=compute, **drawn)
        found.update(mean=post.mean(), variance=post.variance(noise=True), samples=post.sample())

    with Peak() as peak:
        began = time.process_time()
        fitted, busy = seconds(fit), time.process_time() - began
        predicted = seconds(predict)
    history = reports[0].history
    row = {
        "fit_seconds": fitted,
        "fit_cpu_seconds": busy,
        "predict_seconds": predicted,
        "peak_gb": 1e-9 * peak.bytes,
        "measured_steps": len(history),
        "solver_share": sum(step.solver_seconds for step in history) / sum(step.seconds for step in history),
        "epochs": sum(step.epochs for step in history),
        "last_epochs": history[-1].epochs,
        "above_tol": sum(step.status != "CONVERGED" for step in history),
        "path": [step.values for step in history[:: max(1, len(history) // 20)]],
    }
    mean, variance = found["mean"], found["variance"]
    for part, cells in (("train", data.observed), ("test", ~data.observed)):
        row |= scores(part, data.Y[cells], mean[cells], variance[cells])
    return row


def scores(part: str, y: Tensor, mean: Tensor, variance: Tensor) -> dict[str, float]:
    """RMSE, NLL and the share inside 95 % intervals."""
    found = {"rmse": rmse(y, mean), "nll": nll(y, mean, variance), "coverage": coverage(y, mean, variance)}
    return {f"{part}_{name}": value for name, value in found.items()}


def baseline_row(data: Curves, seed: int, options: argparse.Namespace, baseline: Baseline) -> dict[str, Any]:
    """A baseline of GPyTorch, in as many seconds as ours took or with the given number of steps."""
    about = {"set": data.name, "seed": seed, "configurations": len(data.X), "method": "pathgp"}
    limits: dict[str, Any] = {"steps": options.baseline_steps}
    if options.baseline_steps is None:
        mine = stored(f"lcbench_{options.device}", KEY)[row_key(vars(options) | about, KEY)]
        limits = {"seconds": mine["fit_seconds"] + mine["predict_seconds"]}
    baseline = replace(baseline, rate=options.baseline_rate)
    parts = {"train": data.observed, "test": ~data.observed}
    given = data.inputs(data.observed), data.Y[data.observed]
    new = [data.inputs(cells) for cells in parts.values()]
    row, found = run_baseline(baseline, data.gpytorch_kernel, *given, new, **limits, seed=seed)
    row["rate"] = baseline.rate
    for (part, cells), predicted in zip(parts.items(), found, strict=False):
        row |= scores(part, data.Y[cells], *predicted)
    return row


def botorch(data: Curves, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """Steps of BoTorch's model along the path of ours; a failure is recorded as one."""
    try:
        import gpytorch
        from botorch.models.latent_kronecker_gp import LatentKroneckerGP
        from gpytorch.kernels import RBFKernel, ScaleKernel
    except ImportError:
        raise SystemExit("this comparison needs BoTorch: pip install botorch") from None
    about = {"set": data.name, "seed": seed, "configurations": len(data.X), "method": "pathgp"}
    path = stored(f"lcbench_{options.device}", KEY)[row_key(vars(options) | about, KEY)]["path"]
    torch.manual_seed(seed)
    configurations = ScaleKernel(RBFKernel(ard_num_dims=data.X.shape[1]))
    parts = {"covar_module_X": configurations, "covar_module_T": RBFKernel(), "outcome_transform": None}
    peer = LatentKroneckerGP(data.X, data.T, data.given, **parts).to(data.X)
    likelihood = gpytorch.mlls.ExactMarginalLogLikelihood(peer.likelihood, peer)
    adam = torch.optim.Adam(peer.parameters(), lr=RATE)

    def step() -> None:
        adam.zero_grad()
        loss = -likelihood(peer(data.X), peer.train_targets)
        loss.backward()
        adam.step()

    places = np.linspace(0, len(path) - 1, min(options.measured_steps, len(path))).round().astype(int).tolist()
    settings, each, busy, failed = gpytorch.settings, [], 0.0, {}
    with (
        Peak() as peak,
        warnings.catch_warnings(),
        peer.use_iterative_methods(tol=TOL),
        settings.num_trace_samples(options.probes),
        settings.max_preconditioner_size(RANK),
    ):
        warnings.simplefilter("ignore")
        try:
            for place in places:
                values = {name: torch.tensor(found).to(data.X) for name, found in path[place].items()}
                configurations.outputscale = values["0.signal"].square()
                configurations.base_kernel.lengthscale = values["0.lengthscale"]
                peer.covar_module_T.lengthscale = values["1.lengthscale"]
                peer.likelihood.noise = values["noise"].square()
                began = time.process_time()
                each.append(seconds(step))
                busy += time.process_time() - began
                print(f"  at step {place} of {len(path)} of our path: {each[-1]:.1f} s", file=sys.stderr, flush=True)
        except RuntimeError as error:  # NotPSDError and NanError are RuntimeErrors
            failed = {"failed": f"{type(error).__name__}: {error}"}
    whole = options.steps / max(1, len(each))
    times = {"fit_seconds": sum(each) * whole, "fit_cpu_seconds": busy * whole, "each": each} if each else {}
    row = {"method": f"botorch {str(data.X.dtype).removeprefix('torch.')}", "measured_steps": len(each), **times}
    asked = data.Y.numel() ** 2 * data.X.element_size()
    return {**row, "peak_gb": 1e-9 * peak.bytes, "posterior_gb": 1e-9 * asked, **failed}


def alone(name: str, seed: int, method: str, options: argparse.Namespace) -> dict[str, Any]:
    """One measurement in a process of its own."""
    given = {
        "--sets": name,
        "--seeds": seed,
        "--steps": options.steps,
        "--probes": options.probes,
        "--rows": options.rows,
        "--measured-steps": options.measured_steps,
        "--preconditioner": options.preconditioner,
        "--sparse": options.sparse,
        "--vnngp": options.vnngp,
        "--baseline-rate": options.baseline_rate,
        "--device": options.device,
        "--only": method,
    }
    optional = {"--baseline-steps": options.baseline_steps, "--memory": options.memory}
    given |= {option: value for option, value in optional.items() if value is not None}
    command = [
        sys.executable,
        "-m",
        "benchmarks.thesis.table_6_1",
        *(str(word) for pair in given.items() for word in pair),
    ]
    threads = max(1, (os.cpu_count() or 1) // options.processes)
    environment = os.environ if options.processes == 1 else os.environ | {"OMP_NUM_THREADS": str(threads)}
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout
    found: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return found


def measure(name: str, seed: int, method: str, options: argparse.Namespace) -> dict[str, Any]:
    """One row."""
    dtype = torch.float64 if method == "botorch64" else torch.float32
    data = curves(name, seed, options.rows or None, dtype, options.device)
    about = {"set": name, "seed": seed, "configurations": len(data.X), "n": int(data.observed.sum())}
    about |= {"steps": options.steps, "probes": options.probes, "preconditioner": options.preconditioner}
    for baseline in chosen_baselines(options):
        if method == baseline.name:
            return about | baseline_row(data, seed, options, baseline)
    return about | {"pathgp": ours, "default": default}.get(method, botorch)(data, seed, options)


def record(row: dict[str, Any], device: str) -> None:
    """Print a row and write it; what the file holds about other sets, seeds, sizes and methods stays."""
    said = ("set", "seed", "method", "fit_seconds", "predict_seconds", "peak_gb", "epochs", "above_tol")
    said += ("train_nll", "test_nll", "fit_seconds_times_ours", "fit_cpu_seconds_times_ours", "failed")
    shown = {name: row[name] for name in said if name in row}
    print("  ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in shown.items()), flush=True)
    facts: dict[str, Any] = {"tol": TOL, "learning_rate": RATE, "samples": SAMPLES}
    merge(f"lcbench_{device}", KEY, row, lambda rows: {"beside_sparse": beside_sparse(rows)}, **facts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="*", default=list(SETS), help="'all' for the 35")
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--probes", type=int, default=64)
    parser.add_argument("--rows", type=int, default=0, help="configurations; 0 for all 2,000")
    parser.add_argument("--default", action="store_true", help="measure the default fit, too")
    add_options(parser)
    parser.add_argument("--baseline-steps", type=int, help="steps of the baselines; ours is not run")
    parser.add_argument("--baseline-rate", type=float, default=0.01, help="learning rate of the baselines")
    parser.add_argument(
        "--botorch", nargs="*", choices=list(PEERS), default=[], help="compare with its LatentKroneckerGP in these"
    )
    parser.add_argument("--measured-steps", type=int, default=10, help="steps of BoTorch")
    parser.add_argument("--preconditioner", choices=list(PRECONDITIONERS), default="auto")
    parser.add_argument("--memory", help="budget of a fit, such as 8GB, by default half of the free memory")
    parser.add_argument("--device", default=device_name())
    parser.add_argument("--processes", type=int, default=1, help="sets measured at the same time")
    parser.add_argument("--again", action="store_true", help="measure rows again that the file holds")
    parser.add_argument("--table", action="store_true", help="print the table of the file, measure nothing")
    parser.add_argument("--only", help=argparse.SUPPRESS)
    options = parse(parser, sets=["MiniBooNE"], seeds=[0], rows=20, steps=1, probes=2, sparse=10, vnngp=4)
    chosen = names() if options.sets == ["all"] else options.sets
    if options.only:
        print(json.dumps(measure(chosen[0], options.seeds[0], options.only, options)))
        return
    # Ours first: BoTorch's steps are taken along its path.
    methods = ["pathgp"] if options.baseline_steps is None else []
    methods += ["default"] if options.default else []
    methods += [baseline.name for baseline in chosen_baselines(options)]
    methods += [PEERS[dtype] for dtype in options.botorch]
    failed = 0
    if not options.table:
        load("lcbench")  # says what to do without the file
        failed = sum(run(method, [(n, seed) for n in chosen for seed in options.seeds], options) for method in methods)
    show(options.device)
    if failed:
        sys.exit(1)


def run(method: str, jobs: list[tuple[str, int]], options: argparse.Namespace) -> int:
    """All that the file does not hold yet, some at a time; return how many failed."""
    failed = 0
    titles = {peer: f"botorch {dtype}" for dtype, peer in PEERS.items()}
    titles |= {"default": "pathgp default"}
    about = vars(options) | {"configurations": options.rows or 2000, "method": titles.get(method, method)}
    known = {} if options.again else stored(f"lcbench_{options.device}", KEY)
    jobs = [(name, seed) for name, seed in jobs if row_key({**about, "set": name, "seed": seed}, KEY) not in known]
    with ThreadPoolExecutor(options.processes) as pool:
        for future in as_completed([pool.submit(alone, name, seed, method, options) for name, seed in jobs]):
            try:
                row = future.result()
            except subprocess.CalledProcessError as error:
                print(f"failed: {' '.join(map(str, error.cmd[2:]))}", flush=True)
                failed += 1
                continue
            if method in PEERS.values():
                mine = stored(f"lcbench_{options.device}", KEY)[row_key({**row, "method": "pathgp"}, KEY)]
                for clock in ("fit_seconds", "fit_cpu_seconds"):
                    row[f"{clock}_times_ours"] = row.get(clock, math.nan) / mine[clock]
            record(row, options.device)
    return failed


if __name__ == "__main__":
    main()
