"""Table 6.2 of the thesis: fields over space and time with holes, generated ones of its sizes, and real ones.

    python -m benchmarks.thesis.table_6_2 [NAME ...] [--missing 0.1 0.3 0.5] [--steps 100] [--probes 10] [--cut N]
                                        [--seeds 0] [--sizes 5000 1000] [--preconditioner auto]
                                        [--sparse 1000] [--vnngp 32] [--device cpu] [--table]

NAME is one of

- generated: a draw of SE on [0, 1]^2 times SE * Periodic on days, with noise 0.1, 5,000 places x 1,000 days;
- era5_uk_t2m, 1,617 places x 744 hours, and pacific_sst, 2,261 x 399 months: SE on space x SE * Periodic on time, with
  an initial period of a day and of a year;
- colorado_monthly_met, 376 stations x 1,236 months of which 62 % are missing, elevation as a third input of space: the
  same kernels, 10 % of the observed cells held out;
- precip_ciq, three sides year x longitude x latitude, 10 x 144 x 72: Matern-3/2 each, 10 % held out;
- etopo5_global, 2,161 latitudes x 4,320 longitudes: Matern-3/2 each, 30 % held out; for a GPU, or with ``--cut``.

Cells are held out uniformly at random; ``--missing`` is the ratio for the first three, by default 10 to 50 % on a GPU.
Space is standardised, time is in units of the period, values are standardised by the observed ones, and all scores are
on that scale. Adam at 0.1 from GPyTorch's initial values, solves to 0.01, ``--probes`` systems in addition to that of
the mean, float32; then mean, variance and 64 samples of all cells. Seconds are the total; memory is the peak minus the
memory before (GPU: of the allocator, CPU: of the process).

The baselines are a sparse variational GP of GPyTorch with ``--sparse`` inducing points (0: none) and a variational
nearest-neighbour GP with ``--vnngp`` neighbours, with the same kernel and the same number of seconds: see
peers/baselines.py.

``--cut N`` uses N entries of every side, for experiments: the first ones of time, evenly spaced ones of other sides.
The file keeps the rows of earlier runs, which are not measured again.
"""

from __future__ import annotations

import argparse
import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

import pathgp
from benchmarks.common.datasets import load
from benchmarks.common.fits import THESIS_FIT
from benchmarks.common.options import parse
from benchmarks.common.peak import Peak
from benchmarks.common.recording import device_name, merge, read, row_key, seconds, stored, table
from benchmarks.peers.baselines import Baseline, add_options, chosen_baselines, run_baseline
from benchmarks.thesis.lcbench_curves import DEFAULT
from benchmarks.thesis.published import NO_CAGP, Cell, other_rows, tables
from benchmarks.thesis.table_6_1 import PRECONDITIONERS, RATE, SAMPLES, TOL, scores
from pathgp import kernels
from pathgp.data.grid import root
from pathgp.operators.grid_base import multiply_sides

TITLE = "Fields over space and time"
RESULTS = ("climate_cuda",)
PROTOCOL = """\
A column is a field and the share of its cells that is held out. Our numbers are about two other fields, so that the
two numbers of a cell must not be compared. In the columns of temperature: air temperature of the United Kingdom by the
hour, 1,617 places by 744 hours. In those of precipitation there is no precipitation of ours, but anomalies of the
sea-surface temperature of the Pacific by the month, 2,261 places by 399 months. LKGP
is `LatentKroneckerGP`; SVGP is GPyTorch's with 1,000 inducing points and the seconds of LKGP. Scores are on the
standardised scale."""
KEY = ("field", "sizes", "held_out", "seed", "steps", "probes", "preconditioner", "method")
NOISE = 0.1
STAND_IN = "the Nordic Gridded Climate Dataset could not be obtained; another field replaces it"
ABSENT = "the Nordic Gridded Climate Dataset could not be obtained, and this was not run on the field that replaces it"
# Stand-ins for the two fields of the thesis.
STAND_INS = {"temperature": "era5_uk_t2m", "precipitation": "pacific_sst"}
_OURS = {"temperature": "air, UK", "precipitation": "sea surface, Pacific"}
COLUMN_TITLES = {column: f"{column} (ours: {_OURS[column.split()[0]]})" for column in tables()["table 6.2"]["columns"]}


@dataclass(frozen=True)
class Field:
    """Inputs of every side, values on the grid (NaN: none), kind of kernel by side, share of values to hold out."""

    name: str
    factors: list[Tensor]
    Y: Tensor
    kinds: tuple[str, ...]
    held_out: float | None = None

    def split(self, share: float, seed: int) -> tuple[Tensor, Tensor]:
        """Values to learn from, standardised, NaN elsewhere; and those held out, on the same scale, likewise."""
        known = ~torch.isnan(self.Y)
        draw = torch.rand(self.Y.shape, generator=torch.Generator().manual_seed(seed)).to(self.Y.device)
        test = known & (draw < share)
        train = known & ~test
        values = self.Y[train].to(torch.float64)
        Y = ((self.Y - values.mean()) / values.std()).to(torch.float32)
        return torch.where(train, Y, torch.nan), torch.where(test, Y, torch.nan)

    def on(self, device: str) -> Field:
        """The same on a device."""
        return replace(self, factors=[F.to(device) for F in self.factors], Y=self.Y.to(device))


def generated(sizes: tuple[int, int], seed: int = 0) -> Field:
    """A draw from the prior and noise; time in years."""
    source = torch.Generator().manual_seed(seed)
    space = torch.rand(sizes[0], 2, generator=source)
    days = torch.arange(sizes[1], dtype=torch.float32).unsqueeze(1) / 365.25
    truth = [kernels.SquaredExponential(0.15), kernels.SquaredExponential(0.1) * kernels.Periodic(1.0, 1.0)]
    w = torch.randn(*sizes, 1, generator=source)
    roots = [root(kernel, F).to(w) for kernel, F in zip(truth, (space, days), strict=True)]
    noise = NOISE * torch.randn(*sizes, generator=source)
    return Field("generated", [_standardised(space), days], multiply_sides(roots, w)[..., 0] + noise, ("se", "season"))


def measured(name: str, period: float, held_out: float | None = None) -> Field:
    """Places x times from a file, time in periods."""
    data = load(name)
    S, T = data.factors
    T = (T.astype(np.float64) - float(T[0, 0])) / period
    return Field(name, [_standardised(_tensor(S)), _tensor(T)], _tensor(data.Y), ("se", "season"), held_out)


def precipitation() -> Field:
    """A table of year, longitude, latitude and value, as a grid."""
    data = load("precip_ciq")
    sides, places = zip(*(np.unique(column, return_inverse=True) for column in data.X.T), strict=True)
    Y = np.full([len(side) for side in sides], np.nan, dtype=np.float32)
    Y[places] = data.y
    factors = [_standardised(_tensor(side[:, None])) for side in sides]
    return Field("precip_ciq", factors, _tensor(Y), ("matern",) * 3, 0.1)


def relief() -> Field:
    """Heights of land and sea."""
    data = load("etopo5_global")
    factors = [_standardised(_tensor(side)) for side in data.factors]
    return Field("etopo5_global", factors, _tensor(data.Y), ("matern",) * 2, 0.3)


def _tensor(values: np.ndarray) -> Tensor:
    return torch.tensor(values.astype(np.float32))


def _standardised(F: Tensor) -> Tensor:
    return (F - F.mean(0)) / F.std(0)


FIELDS: dict[str, Callable[[], Field]] = {
    "era5_uk_t2m": lambda: measured("era5_uk_t2m", 24.0),
    "pacific_sst": lambda: measured("pacific_sst", 12.0),
    "colorado_monthly_met": lambda: measured("colorado_monthly_met", 1.0, 0.1),
    "precip_ciq": precipitation,
    "etopo5_global": relief,
}


def cut(field: Field, most: int) -> Field:
    """At most so many entries of every side: the first of time, evenly spaced ones elsewhere."""
    factors, Y = [], field.Y
    for side, (F, kind) in enumerate(zip(field.factors, field.kinds, strict=True)):
        count = min(most, len(F))
        chosen = torch.arange(count) if kind == "season" else torch.linspace(0, len(F) - 1, count).long()
        factors.append(F[chosen.to(F.device)])
        Y = Y.index_select(side, chosen.to(Y.device))
    return replace(field, factors=factors, Y=Y)


def model(field: Field) -> pathgp.LatentKroneckerGP:
    """Kernels at GPyTorch's initial values, periods at one; the first side carries the signal scale."""
    sides: list[kernels.Kernel] = []
    for F, kind in zip(field.factors, field.kinds, strict=True):
        each = torch.full((F.shape[1],), DEFAULT, dtype=torch.float64)
        smooth = kernels.Matern(1.5, each) if kind == "matern" else kernels.SquaredExponential(each)
        sides.append(smooth * kernels.Periodic(1.0, math.sqrt(DEFAULT)) if kind == "season" else smooth)
    sides[0] = kernels.Scale(sides[0], math.sqrt(DEFAULT))
    return pathgp.LatentKroneckerGP(sides, noise=math.sqrt(DEFAULT))


def ours(field: Field, given: Tensor, seed: int, options: argparse.Namespace) -> tuple[dict[str, Any], Tensor, Tensor]:
    """Fit, mean, variance, samples: the row, and mean and variance of every cell."""
    gp, reports, found, began = model(field), [], {}, time.perf_counter()
    solver, generator = PRECONDITIONERS[options.preconditioner], torch.Generator().manual_seed(seed)

    def fit() -> None:
        chosen = {
            "solver": solver,
            "tol": TOL,
            "samples": options.probes,
            "generator": generator,
            "callback": tell,
            **THESIS_FIT,
        }
        reports.append(gp.fit(field.factors, given, steps=options.steps, learning_rate=RATE, min_gain=0.0, **chosen))

    def tell(step: Any) -> None:
        if step.step % 10 == 9:
            past = time.perf_counter() - began
            print(f"  {field.name}: {step.step + 1} steps, {past:.1f} s, {step.epochs:.0f} epochs", flush=True)

    def predict() -> None:
        post = gp.posterior
        if options.probes < SAMPLES:
            chosen = {"solver": solver, "tol": TOL, "samples": SAMPLES, "generator": generator}
            post = gp.condition(field.factors, given, **chosen)
        found.update(mean=post.mean(), variance=post.variance(noise=True), residual=post.report.worst_residual)
        found["samples"] = post.sample()

    with Peak() as peak, warnings.catch_warnings():
        warnings.simplefilter("ignore", pathgp.ConvergenceWarning)
        fitted, predicted = seconds(fit), seconds(predict)
    history = reports[0].history
    row = {
        "method": "pathgp",
        "seconds": fitted + predicted,
        "fit_seconds": fitted,
        "predict_seconds": predicted,
        "peak_gb": 1e-9 * peak.bytes,
        "epochs": sum(step.epochs for step in history),
        "solver_share": sum(step.solver_seconds for step in history) / sum(step.seconds for step in history),
        "above_tol": sum(step.status != "CONVERGED" for step in history),
        "last_residual": found["residual"],
        "values": reports[0].values,
    }
    return row, found["mean"], found["variance"]


def cells(field: Field, chosen: Tensor) -> Tensor:
    """The inputs of some cells, columns side by side."""
    places = torch.nonzero(chosen, as_tuple=True)
    return torch.cat([F[place] for F, place in zip(field.factors, places, strict=True)], 1)


def baseline_row(
    field: Field, given: Tensor, test: Tensor, allowed: float, baseline: Baseline, seed: int
) -> dict[str, Any]:
    """A baseline of GPyTorch after ``allowed`` seconds of steps, scored."""
    observed, held_out = ~torch.isnan(given), ~torch.isnan(test)
    inputs = [cells(field, held_out)]
    data = cells(field, observed), given[observed]
    row, found = run_baseline(baseline, lambda: _peer(field), *data, inputs, seconds=allowed, seed=seed)
    return row if not found else row | scores("test", test[held_out], *found[0])


def _peer(field: Field) -> Any:
    """The same kernel in GPyTorch."""
    from gpytorch.kernels import MaternKernel, PeriodicKernel, RBFKernel, ScaleKernel

    start, product = 0, None
    for F, kind in zip(field.factors, field.kinds, strict=True):
        dims = {"active_dims": tuple(range(start, start + F.shape[1]))}
        side = MaternKernel(1.5, ard_num_dims=F.shape[1], **dims) if kind == "matern" else None
        side = RBFKernel(ard_num_dims=F.shape[1], **dims) if side is None else side
        if kind == "season":
            periodic = PeriodicKernel(**dims)
            periodic.period_length = 1.0
            side = side * periodic
        product, start = side if product is None else product * side, start + F.shape[1]
    return ScaleKernel(product)


def record(row: dict[str, Any], device: str) -> None:
    """Print a row and write it; what the file holds about other fields, sizes and methods stays."""
    shown = {k: v for k, v in row.items() if k != "values"}
    print("  ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in shown.items()), flush=True)
    merge(f"climate_{device}", KEY, row, tol=TOL, learning_rate=RATE, samples=SAMPLES)


def compare(field: Field, share: float, seed: int, options: argparse.Namespace) -> None:
    """Both methods on one field, where the file does not have them."""
    given, test = field.split(share, seed)
    observed, held_out = ~torch.isnan(given), ~torch.isnan(test)
    about = {"field": field.name, "sizes": list(field.Y.shape), "n": int(observed.sum()), "held_out": share}
    about |= {"missing": 1.0 - float(observed.float().mean()), "seed": seed, "steps": options.steps}
    about |= {"probes": options.probes, "preconditioner": options.preconditioner}
    known, device = stored(f"climate_{options.device}", KEY), options.device
    mine = known.get(row_key({**about, "method": "pathgp"}, KEY))
    if mine is None:
        mine, mean, variance = ours(field, given, seed, options)
        mine |= scores("train", given[observed], mean[observed], variance[observed])
        record(about | mine | scores("test", test[held_out], mean[held_out], variance[held_out]), device)
    for baseline in chosen_baselines(options):
        if row_key({**about, "method": baseline.name}, KEY) not in known:
            record(about | baseline_row(field, given, test, mine["seconds"], baseline, seed), device)


def table_cells() -> list[Cell]:
    """Values of the stand-ins, one per seed: none of them can be compared."""
    rows, found = read("climate_cuda"), []
    scores_of = {"train RMSE": "train_rmse", "test RMSE": "test_rmse", "train NLL": "train_nll", "test NLL": "test_nll"}
    for block in tables()["table 6.2"]["blocks"]:
        score = scores_of.get(block, "seconds")
        for method, start in {"LKGP": "pathgp", "SVGP": "gpytorch sparse", "VNNGP": "gpytorch vnngp"}.items():
            for column in tables()["table 6.2"]["columns"]:
                kind, share, _ = column.split()
                mine = [
                    r for r in rows if r["field"] == STAND_INS[kind] and abs(100 * r["held_out"] - int(share)) < 0.1
                ]
                mine = [r for r in mine if r["method"].startswith(start) and score in r]
                values = tuple(r[score] / (60 if block == "minutes" else 1) for r in mine)
                found.append(Cell(block, method, column, values, STAND_IN if values else ABSENT))
    return found + other_rows("table 6.2", NO_CAGP, found)


def show(device: str) -> None:
    """The table of the file."""
    rows = read(f"climate_{device}")
    keys = ("field", "sizes", "held_out", "seed", "method", "steps", "probes", "seconds", "peak_gb")
    keys += ("train_rmse", "train_nll", "test_rmse", "test_nll", "test_coverage", "failed")
    print(table([{key: row.get(key) for key in keys} for row in rows]))


def main() -> None:
    large = device_name() == "cuda"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="by default all that suit the device")
    shares = [0.1, 0.2, 0.3, 0.4, 0.5] if large else [0.3]
    parser.add_argument("--missing", type=float, nargs="*", default=shares)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--probes", type=int, default=10)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0])
    parser.add_argument("--sizes", type=int, nargs=2, default=[5000, 1000], help="of the generated field")
    parser.add_argument("--cut", type=int, default=0, help="entries of every side; 0 takes all")
    parser.add_argument("--preconditioner", choices=list(PRECONDITIONERS), default="auto")
    add_options(parser, sparse=1000)
    parser.add_argument("--device", default=device_name())
    parser.add_argument("--table", action="store_true", help="print the table of the file, measure nothing")
    options = parse(parser, names=["generated"], sizes=[20, 15], missing=[0.3], steps=2, sparse=10, vnngp=4)
    known = {"generated": lambda: generated(tuple(options.sizes)), **FIELDS}
    unknown = set(options.names) - set(known)
    if unknown:
        parser.error(f"no field {', '.join(sorted(unknown))}: choose from {', '.join(known)}")
    if options.table:
        show(options.device)
        return
    for name in options.names or [name for name in known if large or name not in ("generated", "etopo5_global")]:
        if name == "etopo5_global" and not (large or options.cut):
            parser.error("etopo5_global is for a GPU: use --cut")
        field = known[name]().on(options.device)
        field = cut(field, options.cut) if options.cut else field
        for share in options.missing if field.held_out is None else [field.held_out]:
            for seed in options.seeds:
                compare(field, share, seed, options)
    show(options.device)


if __name__ == "__main__":
    main()
