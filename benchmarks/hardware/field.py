"""Fields in up to three dimensions: products in n log n, and whole problems with them.

    python -m benchmarks.hardware.field [PART ...] [--rows N ...] [--backend auto] [--device cuda] [--memory 8GB]
        [--time-limit SECONDS]

Parts:

- products: K V with 65 columns by field and by exact products: error, seconds, ratio, for several numbers of rows.
- satellite: 100,000 pixels of a 300 x 500 grid with blocks missing, Matern-1/2: 40 steps of learning, then mean and
  standard deviation at the missing pixels.
- scattered: 10,000,000 points in two dimensions, Matern-3/2, mean and 64 samples to a residual of 0.01.
- sphere: all 9,335,520 points of etopo5_global as points on the unit sphere, three dimensions, mean and 64 samples.
- globe: the same as rows of latitude and longitude, with kernels.Sphere, mean and 16 samples.
- kaust: the space-time sets kaust2a_1, _4 and _7 with 90,000 rows: learning, prediction with standard deviation, 64
  samples.
- relief: 1,000,000 points of etopo5_global on the unit sphere, mean and 16 samples.

Default: products and satellite. ``--rows`` limits the rows of a part. The file keeps the rows of other parts. The parts
scattered, sphere, globe and relief print their stages with seconds. ``--time-limit`` ends the program in a part that
takes longer.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

import pathgp
from benchmarks.common.datasets import find, load
from benchmarks.common.options import parse
from benchmarks.common.recording import device_name, median_seconds, read, write
from benchmarks.common.stages import Stages, end_after
from pathgp import Compute, kernels
from pathgp.metrics import crps, rmse
from pathgp.operators import FieldOperator, KernelOperator
from pathgp.pathwise import PriorPaths
from pathgp.solvers import auto, averages, vecchia
from pathgp.solvers.solution import Record

COLUMNS = 65
# Kernels and dimensions of the products, with a length scale for points in the unit cube.
PRODUCTS = [(1.5, 2, 0.05), (0.5, 2, 0.1), (1.5, 3, 0.2), (0.5, 1, 0.1)]
ROWS = {"cuda": (100_000, 1_000_000), "cpu": (20_000, 50_000)}
STAGES: dict[str, tuple[Any, str]] = {
    "prior at the data": (pathgp.GP, "system"),
    "operator": (KernelOperator, "__init__"),
    "choice of a solver": (auto, "predict_options"),
    "rows per average": (vecchia, "choose_averages"),
    "rehearsal": (vecchia, "rehearse_neighbours"),
    "preconditioner": (vecchia.Vecchia, "build"),
    "groups of rows": (averages, "group_nearby_rows"),
    "nearest averages": (averages, "nearest_neighbours"),
    "fluctuations": (averages.AveragedInverse, "_condition"),
    "factor": (averages, "factor_columns"),
    "product": (KernelOperator, "__matmul__"),
    "application of averages": (averages.AveragedInverse, "__call__"),
}


def products(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Field products beside the exact ones of the same device."""
    for n in options.rows or ROWS[options.device]:
        for nu, d, lengthscale in PRODUCTS[:1] if options.quick else PRODUCTS:
            generator = torch.Generator().manual_seed(0)
            X = torch.rand(n, d, generator=generator).to(options.device)
            V = torch.randn(n, COLUMNS, generator=generator).to(options.device)
            kernel = kernels.Scale(kernels.Matern(nu, lengthscale))
            began = time.perf_counter()
            H = FieldOperator(kernel, X, 0.1)
            _synchronise(X)
            build = time.perf_counter() - began
            exact = KernelOperator(kernel, X, 0.1, Compute("fused" if X.is_cuda else "streamed"))
            index = torch.arange(0, n, max(1, n // 256), device=X.device)
            found, wanted = (H @ V)[index], exact.rows(index, V)
            fast = median_seconds(partial(H.__matmul__, V), 3)
            slow = median_seconds(partial(exact.__matmul__, V), 1)
            plan = H._tiles.plan  # type: ignore[union-attr]
            yield {
                "part": "products",
                "rows": n,
                "dim": d,
                "nu": nu,
                "error": float((found - wanted).norm() / wanted.norm()),
                "seconds": fast,
                "predicted": H.predict_product(COLUMNS),
                "exact_seconds": slow,
                "ratio": slow / fast,
                "build_seconds": build,
                "nodes": plan.grid.nodes,
                "near_entries": plan.entries,
            }


def satellite(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Learning and prediction on an image with blocks missing."""
    height, width = (30, 50) if options.quick else (300, 500)
    generator = torch.Generator().manual_seed(0)
    pixels = torch.cartesian_prod(torch.arange(height), torch.arange(width)).to(torch.float32).to(options.device)
    truth = kernels.Matern(0.5, 40.0)
    f = _draw(truth, pixels, generator)
    y = f + 0.1 * torch.randn(len(f), generator=generator).to(f)
    missing = torch.zeros(height, width, dtype=torch.bool)
    side = height // 10
    while missing.float().mean() < 1 / 3:
        i, j = (int(torch.randint(size - side, (1,), generator=generator)) for size in (height, width))
        missing[i : i + side, j : j + side] = True
    held_out = missing.flatten().to(options.device)
    gp = pathgp.GP(kernels.Scale(kernels.Matern(0.5, 10.0)), noise=0.3, standardise=True)
    began = time.perf_counter()
    steps, compute = 3 if options.quick else 40, Compute(options.backend)
    report = gp.fit(pixels[~held_out], y[~held_out], steps=steps, generator=generator, compute=compute)
    _synchronise(pixels)
    fitted = time.perf_counter() - began
    mean = gp.posterior.mean(pixels[held_out])
    std = gp.posterior.variance(pixels[held_out], noise=True).sqrt()
    _synchronise(pixels)
    total = time.perf_counter() - began
    yield {
        "part": "satellite",
        "rows": int((~held_out).sum()),
        "seconds": total,
        "fit_seconds": fitted,
        "rmse": float(rmse(y[held_out], mean)),
        "mean_std": float(std.mean()),
        "kernel": repr(gp.kernel),
        "backend": gp.posterior.report.backend,
        "solver": gp.posterior.report.solution.solver,
        "residual": gp.posterior.report.worst_residual,
        "products": gp.posterior.report.products,
        "fit": repr(report),
    }


def scattered(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Mean and 64 samples at ten million points of the unit square; the truth is known."""
    n = (options.rows or [10_000_000])[0]
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(n, 2, generator=generator).to(options.device)
    gp = pathgp.GP(kernels.Matern(1.5, 0.05), noise=0.1)
    f = _draw(gp.kernel, X, generator)
    y = f + 0.1 * torch.randn(n, generator=generator).to(X)
    yield _condition("scattered", gp, X, y, f, 64, options)


def sphere(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Mean and 64 samples of the Earth's relief at all points of the 5-minute grid."""
    yield _relief("sphere", 64, 9_335_520, options)


def relief(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Mean and 16 samples at a million points of the same grid."""
    yield _relief("relief", 16, 1_000_000, options)


def globe(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Mean and 16 samples of the Earth's relief at rows of latitude and longitude, or at every k-th of both."""
    grid = load("etopo5_global")
    # A 5-minute grid, whose last longitudes the file rounds: 359.92 for 359.9167.
    lat, lon = grid.factors[0][:, 0].astype(np.float64), np.arange(len(grid.factors[1])) / 12.0
    most = (options.rows or [len(lat) * len(lon)])[0]
    # The longitudes of a part must go around the Earth.
    step = next(k for k in range(1, len(lon)) if len(lon) % k == 0 and len(lat[::k]) * len(lon[::k]) <= most)
    X = np.stack(np.meshgrid(lat[::step], lon[::step], indexing="ij"), -1).reshape(-1, 2)
    y = grid.Y[::step, ::step].astype(np.float64).ravel()
    order = np.random.default_rng(0).permutation(len(y))
    rows = torch.tensor(X[order], dtype=torch.float32, device=options.device)
    heights = torch.tensor((y - y.mean())[order] / y.std(), dtype=torch.float32, device=options.device)
    gp = pathgp.GP(kernels.Scale(kernels.Sphere(kernels.Matern(1.5, 0.05)), 0.7), noise=0.1)
    yield _condition("globe", gp, rows, heights, None, 16, options)


def kaust(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Learning, predictions with standard deviations, and samples of a space-time field."""
    for number in (1, 4, 7):
        arrays = np.load(find(f"kaust2a_{number}.npz"))
        X, y, X_test, y_test = (
            torch.tensor(arrays[key], dtype=torch.float32, device=options.device)
            for key in ("X", "y", "X_test", "y_test")
        )
        if options.rows:
            X, y = X[:: -(-len(X) // options.rows[0])], y[:: -(-len(y) // options.rows[0])]
        scale = X.std(0)
        X, X_test = X / scale, X_test / scale
        gp = pathgp.GP(kernels.Scale(kernels.Matern(0.5, torch.ones(3))), noise=0.1, standardise=True)
        began = time.perf_counter()
        gp.fit(X, y, generator=torch.Generator().manual_seed(0), compute=Compute(options.backend))
        fitted = time.perf_counter() - began
        mean, std = gp.posterior.mean(X_test), gp.posterior.variance(X_test, noise=True).sqrt()
        paths = gp.posterior.paths(X_test)
        yield {
            "part": "kaust",
            "set": number,
            "rows": len(X),
            "seconds": time.perf_counter() - began,
            "fit_seconds": fitted,
            "rmse": float(rmse(y_test, mean)),
            "crps": crps(y_test, mean, std**2),
            "samples": len(paths),
            "kernel": repr(gp.kernel),
            "backend": gp.posterior.report.backend,
            "solver": gp.posterior.report.solution.solver,
            "residual": gp.posterior.report.worst_residual,
            "gigabytes": _peak(),
        }


def _relief(part: str, samples: int, n: int, options: argparse.Namespace) -> dict[str, Any]:
    grid = load("etopo5_global")
    lat, lon = (np.deg2rad(side[:, 0].astype(np.float64)) for side in grid.factors)
    n = min(n, (options.rows or [n])[0])
    chosen = np.random.default_rng(0).permutation(len(lat) * len(lon))[:n]
    i, j = np.divmod(chosen, len(lon))
    X = np.stack([np.cos(lat[i]) * np.cos(lon[j]), np.cos(lat[i]) * np.sin(lon[j]), np.sin(lat[i])], 1)
    y = grid.Y[i, j].astype(np.float64)
    points = torch.tensor(X, dtype=torch.float32, device=options.device)
    heights = torch.tensor((y - y.mean()) / y.std(), dtype=torch.float32, device=options.device)
    # Found by exact fits of neighbourhoods, see benchmarks.hardware.million.
    gp = pathgp.GP(kernels.Scale(kernels.Matern(1.5, 0.05), 0.7), noise=0.1)
    return _condition(part, gp, points, heights, None, samples, options)


def _condition(
    part: str, gp: pathgp.GP, X: Tensor, y: Tensor, truth: Tensor | None, samples: int, options: argparse.Namespace
) -> dict[str, Any]:
    """Condition on all rows; how well the mean predicts at some of them, if the truth is known."""
    compute, generator, stages = Compute(options.backend, options.memory), torch.Generator().manual_seed(1), Stages()
    facts = {"part": part, "rows": len(X), "samples": samples}

    def show(record: Record) -> None:
        kind = "residual" if record.is_exact else "recurrence"
        stages.say(
            f"iteration {record.iterations}, {record.epochs:.1f} epochs, {kind} {float(record.residual.max()):.1e}"
        )

    def give_up() -> None:
        row = {**facts, "status": "OUT_OF_TIME", "seconds": options.time_limit, "stages": stages.summary()}
        _record(part, [row], options)

    _synchronise(X)
    stages.began = began = time.perf_counter()
    with stages.watch(STAGES), end_after(options.time_limit, give_up):
        posterior = gp.condition(
            X, y, samples=samples, features=256, generator=generator, compute=compute, callback=show
        )
        _synchronise(X)
    seconds = time.perf_counter() - began
    report = posterior.report
    index = torch.arange(0, len(X), max(1, len(X) // 2000), device=X.device)
    error = None if truth is None else float(rmse(truth[index], posterior.mean(X[index])))
    return {
        **facts,
        "seconds": seconds,
        "solve_seconds": report.solution.seconds,
        "backend": report.backend,
        "solver": report.solution.solver,
        "why": report.solution.note,
        "iterations": report.solution.iterations,
        "epochs": report.epochs,
        "residual": report.worst_residual,
        "product_error": report.solution.product_error,
        "status": report.status.name,
        "rmse_to_truth": error,
        "gigabytes": _peak(),
        "stages": stages.summary(),
    }


def _draw(kernel: kernels.Kernel, X: Tensor, generator: torch.Generator) -> Tensor:
    """One function of the prior at all points."""
    path = PriorPaths.draw(kernel, 1, 4096, X.shape[1], generator)
    with torch.no_grad():
        return torch.cat([path(part)[0] for part in X.split(100_000)])


def _peak() -> float:
    """The largest memory in use so far, in GB: of the GPU if there is one, otherwise of the process."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 1e9
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def _synchronise(X: Tensor) -> None:
    if X.is_cuda:
        torch.cuda.synchronize()


PARTS: dict[str, Callable[[argparse.Namespace], Iterator[dict[str, Any]]]] = {
    "products": products,
    "satellite": satellite,
    "scattered": scattered,
    "sphere": sphere,
    "globe": globe,
    "kaust": kaust,
    "relief": relief,
}


def _record(part: str, rows: list[dict[str, Any]], options: argparse.Namespace) -> None:
    """Write the rows of a part, beside those of others."""
    name = "field" if options.device == "cuda" else "field_cpu"
    write(name, [row for row in read(name) if row["part"] != part] + rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--rows", type=int, nargs="+")
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--device", default=device_name())
    parser.add_argument("--memory", help="budget, such as 8GB")
    parser.add_argument("--time-limit", type=float, help="seconds for each of scattered, sphere, globe and relief")
    options = parse(parser, rows=[400])
    for part in options.parts or ["products", "satellite"]:
        found = []
        for row in PARTS[part](options):
            found.append(row)
            print("\n".join(f"{key:>14}  {value}" for key, value in row.items()), flush=True)
            print()
            _record(part, found, options)


if __name__ == "__main__":
    main()
