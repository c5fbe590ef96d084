"""Kriging beside GPBoost's Vecchia approximation, in one run on one machine: space-time fields and two maps.

    python -m benchmarks.peers.kriging [SET ...] [--rows N] [--kernel matern-3/2] [--only gpboost] [--device cpu]

Both learn kernel, nugget and a constant trend from the same rows, with the same Matern kernel, and predict mean and
variance at the same test rows. Ours chooses the smoothness by the likelihood, within its seconds, unless --kernel says
otherwise; GPBoost (PyPI gpboost, ``gp_approx="vecchia"``) gets the same. Length scales: one per coordinate; on the
globe (precip_cru) one, of chords. Scores are those of new measurements, nugget included. Rows of earlier runs stay in
the file.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.common.datasets import find
from benchmarks.common.options import parse
from benchmarks.common.peak import reset_peak, resident
from benchmarks.common.recording import merge, read, require, results_file, seconds, table
from pathgp import metrics
from pathgp.kriging import krige

SETS = ("kaust2a_1", "kaust2a_4", "kaust2a_7", "water_vapour", "precip_cru")
SAMPLES = 64
COLUMNS = ("set", "n", "method", "kernel", "seconds", "cpu_seconds", "gigabytes", "rmse", "crps", "coverage", "noise")

Vector = NDArray[Any]


def load(name: str, rows: int | None, most_test: int | None) -> tuple[Vector, Vector, Vector, Vector]:
    """Coordinates and values of training and test rows; about ``rows`` random rows of the former.

    Of stations at regular times (kaust2a) whole stations, all of their times.
    """
    with np.load(find(f"{name}.npz")) as file:
        data = {key: file[key] for key in file.files}
    X = np.asarray(data["X"] if "X" in data else np.stack([data["lon"], data["lat"]], 1), dtype=np.float64)
    y = np.asarray(data["y"], dtype=np.float64)
    if "X_test" in data:
        X_test, y_test = (np.asarray(data[key], dtype=np.float64) for key in ("X_test", "y_test"))
    else:
        test = data["test_mask"].reshape(len(y), -1)[:, 0].astype(bool)
        X, y, X_test, y_test = X[~test], y[~test], X[test], y[test]
    draw = np.random.default_rng(0)
    kept, tested = draw.permutation(len(y))[:rows], draw.permutation(len(y_test))[:most_test]
    if name.startswith("kaust") and rows is not None:
        sites, site = np.unique(X[:, :2], axis=0, return_inverse=True)
        chosen = draw.permutation(len(sites))[: max(1, round(rows / len(y) * len(sites)))]
        kept = np.flatnonzero(np.isin(site.ravel(), chosen))
    return X[kept], y[kept], X_test[tested], y_test[tested]


def ours(data: tuple[Vector, ...], is_lonlat: bool, options: argparse.Namespace) -> dict[str, Any]:
    """Learn and predict with `krige`."""
    X, y, X_test, y_test = data
    found: list[Any] = []
    coordinates = "lonlat" if is_lonlat else "plane"

    def run() -> None:
        result = krige(
            X,
            y,
            X_test,
            coordinates=coordinates,
            kernel=options.kernel,
            samples=options.samples,
            steps=options.steps,
            time_limit=options.time_limit,
            device=options.device,
            generator=torch.Generator().manual_seed(0),
        )
        found.append(result)

    took = measure(run)
    result = found[0]
    chosen = options.kernel or re.match(r"\S+", result.report.note)[0]  # type: ignore[index]
    row = {"method": "pathgp", "kernel": chosen, **took, "noise": result.nugget}
    row |= {"learning_seconds": result.report.seconds, "backend": result.report.condition.backend}
    row |= {"solver": result.report.condition.solution.method, "converged": result.report.condition.solution.converged}
    return row | scores(y_test, result.mean, result.std**2 + result.nugget**2)


def gpboost(data: tuple[Vector, ...], is_lonlat: bool, kernel: str, options: argparse.Namespace) -> dict[str, Any]:
    """Learn and predict with GPBoost's Vecchia approximation."""
    library = require("gpboost")
    X, y, X_test, y_test = data
    shape = {"matern-1/2": 0.5, "matern-3/2": 1.5, "matern-5/2": 2.5}[kernel]
    if is_lonlat:
        X, X_test = chords(X), chords(X_test)
    found: list[Any] = []

    def run() -> None:
        model = library.GPModel(
            gp_coords=X,
            cov_function="matern" if is_lonlat else "matern_ard",
            cov_fct_shape=shape,
            gp_approx="vecchia",
            num_neighbors=options.neighbours,
            num_parallel_threads=torch.get_num_threads(),
            likelihood="gaussian",
        )
        model.fit(y=y, X=np.ones((len(y), 1)))
        predicted = model.predict(gp_coords_pred=X_test, X_pred=np.ones((len(X_test), 1)), predict_var=True)
        found.append((predicted["mu"], predicted["var"], np.asarray(model.get_cov_pars()).ravel()))

    took = measure(run)
    mean, variance, parameters = found[0]
    # predict_response=True, its default: variances contain the noise.
    row = {"method": f"gpboost vecchia {options.neighbours}", "kernel": kernel, **took}
    return row | {"noise": float(np.sqrt(parameters[0]))} | scores(y_test, mean, variance)


def measure(run: Callable[[], None]) -> dict[str, float]:
    """Wall-clock seconds of a call, those of all its threads on the CPU, which other programs disturb less, and the
    peak memory of the whole process during the call."""
    reset_peak()
    began = time.process_time()
    took = {"seconds": seconds(run), "cpu_seconds": time.process_time() - began}
    return took | {"gigabytes": resident("VmHWM") / 1e9}


def chords(X: Vector) -> Vector:
    """Points on the unit sphere (n, 3) of longitudes and latitudes (n, 2) in degrees."""
    lon, lat = np.deg2rad(X).T
    return np.stack([np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)], 1)


def scores(y: Vector, mean: Vector, variance: Vector) -> dict[str, float]:
    return {
        "rmse": metrics.rmse(y, mean),
        "crps": metrics.crps(y, mean, variance),
        "coverage": metrics.coverage(y, mean, variance),
        "nll": metrics.nll(y, mean, variance),
    }


def record(row: dict[str, Any], name: str) -> None:
    """Print a row and write it; rows about other sets, sizes and methods stay."""
    print("  ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()), flush=True)
    merge(name, ("set", "n", "method", "kernel"), row)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="*", default=list(SETS), help=f"of {', '.join(SETS)} (default: all)")
    parser.add_argument(
        "--rows", type=int, help="training rows of each set, at random, or of random stations (default: all)"
    )
    parser.add_argument("--test", type=int, help="random test rows of each set (default: all)")
    parser.add_argument("--kernel", choices=["matern-1/2", "matern-3/2", "matern-5/2"], help="default: ours chooses")
    parser.add_argument("--neighbours", type=int, default=30, help="of GPBoost's Vecchia (default: 30)")
    parser.add_argument("--samples", type=int, default=SAMPLES, help=f"our simulations (default: {SAMPLES})")
    parser.add_argument("--steps", type=int, help="our steps of learning, at most")
    parser.add_argument("--time-limit", type=float, help="seconds that our learning may take")
    parser.add_argument("--device", default="cpu", help="of ours; GPBoost runs on the CPU (default: cpu)")
    parser.add_argument("--only", choices=["pathgp", "gpboost"], help="one of the two; GPBoost alone needs --kernel")
    options = parse(parser, sets=["precip_cru"], rows=200, test=50, steps=3, samples=8)
    name = f"kriging_{options.device}"
    if options.only == "gpboost" and options.kernel is None:
        parser.error("--only gpboost needs --kernel")
    has_peer = options.only != "pathgp" and importlib.util.find_spec("gpboost") is not None
    if options.only is None and not has_peer:
        print("gpboost is not installed, only ours is measured: pip install gpboost")
    for key in options.sets:
        data, is_lonlat = load(key, options.rows, options.test), key == "precip_cru"
        about, kernel = {"set": key, "n": len(data[1]), "test": len(data[3])}, options.kernel
        if options.only != "gpboost":
            row = ours(data, is_lonlat, options)
            kernel = row["kernel"]
            record(about | row, name)
        if has_peer or options.only == "gpboost":
            record(about | gpboost(data, is_lonlat, kernel, options), name)
    print(table([{column: row.get(column) for column in COLUMNS} for row in read(name)]))
    print(f"written to {results_file(name)}")


if __name__ == "__main__":
    main()
