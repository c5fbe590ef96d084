"""Fused products on a GPU: speed, accuracy and memory, compared with torch in row chunks and torch.compile of the same.

    python -m benchmarks.hardware.fused            the tables, written to results/fused.json
    python -m benchmarks.hardware.fused --check    every kernel against float64, written to results/fused_check.json;
                                                   fails if an error exceeds the one stated in the documentation
    python -m benchmarks.hardware.fused --tune     one line for every tile and form of points

Matern-3/2, length scale sqrt(d), normal inputs. Speeds are in 10^12 entries of K per second; errors are relative, in
norm, against float64 on a sample of rows. The ceiling of a product is the lowest of three limits: two special functions
per entry, the half-precision operations of the tensor cores, and the float32 operations of differences.

Also measured: Tanimoto on fingerprints of 1,024 columns, gradients, blocks of rows, a million rows with peak memory,
single calls on a few thousand rows, entries of K written to memory, and the sums of sines of prior paths.
"""

from __future__ import annotations

import argparse
import itertools
import math
import multiprocessing
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from benchmarks.common.options import parse
from benchmarks.common.recording import median_seconds, seconds, table, write
from pathgp import Compute, kernels
from pathgp.compute.triton import missing
from pathgp.features import waves
from pathgp.operators import KernelOperator, cross_product
from pathgp.operators.fused import Fused
from pathgp.operators.fused.engine import Engine, column_widths

DEVICE = "cuda"
SAMPLE = 512


def normal(rows: int, columns: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, columns, generator=torch.Generator(DEVICE).manual_seed(seed), device=DEVICE)


def matern(d: int) -> kernels.Kernel:
    return kernels.Scale(kernels.Matern(1.5, torch.full((d,), d**0.5)), 1.1)


def operator(n: int, d: int, precision: str = "high") -> KernelOperator:
    return KernelOperator(matern(d), normal(n, d), 0.1, Compute(backend="fused", precision=precision)).low_precision


def fingerprints(n: int, largest: int) -> Tensor:
    """Counts (n, 1024), 4 per cent of them not zero, most small, up to ``largest``."""
    source = torch.Generator(DEVICE).manual_seed(0)
    X = (torch.rand(n, 1024, generator=source, device=DEVICE) < 0.04).float()
    tops = torch.rand(1024, generator=source, device=DEVICE).pow(7.0).mul(largest).floor().clamp(min=1.0)
    return X * (torch.rand(n, 1024, generator=source, device=DEVICE) * tops).ceil()


def relative(found: Tensor, expected: Tensor) -> float:
    return float(((found.double() - expected).norm() / expected.norm()).detach())


def shown(rows: list[dict[str, Any]], /, **facts: Any) -> None:
    """One more row, on the screen at once."""
    rows.append(facts)
    print(table(rows[-1:]).split("\n", len(rows) > 1)[-1], flush=True)


def in_parallel(action: Callable[[Any], Any], items: Iterable[Any], processes: int) -> list[Any]:
    """Over processes, since compiling takes seconds and one core; what was compiled is found in Triton's cache."""
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        return list(pool.map(action, items))


def need_a_device() -> None:
    """End here where the kernels cannot run."""
    if reason := missing(torch.device(DEVICE)):
        sys.exit(reason)
    if DEVICE == "cuda" and not torch.cuda.is_available():
        sys.exit("no NVIDIA GPU here")


# The tables

CASES = [(16, 64), *((d, 64) for d in (3, 9, 26, 90)), *((16, s) for s in (1, 16, 65, 128))]
PRECISIONS = ("high", "medium", "low")
FEW_ROWS = (5_000, 10_000, 15_000, 20_000)
# (rows, rows of a block) and (rows, dimensions)
BLOCKS = ((15_000, 15_000), (100_000, 20_000))
PATHS = ((15_000, 18), (100_000, 16))


def compile_case(case: tuple[int, int, str]) -> None:
    """The kernels of one line of the tables."""
    d, s, precision = case
    H, V = operator(2048, d, precision), normal(2048, s, 1)
    H @ V
    if precision == "high":
        H.block(torch.arange(100, device=DEVICE))
        H.bilinear(V, V).backward()
        H.bilinear(V, V, symmetric=True).backward()
        cross_product(H.kernel, H.X.clone().requires_grad_(), H.X, V).sum().backward()


def products(n: int) -> list[dict[str, Any]]:
    """Speed of K V for dimensions, columns and precisions."""
    rows: list[dict[str, Any]] = []
    for (d, s), precision in itertools.product(CASES, PRECISIONS):
        H, V = operator(n, d, precision), normal(n, s, 1)
        speed = n**2 / median_seconds(lambda: H @ V, 3) / 1e12  # noqa: B023
        limit, by = ceiling(H, s)
        facts = {"d": d, "columns": s, "precision": precision, "form": forms(H), "speed": speed}
        facts |= {"ceiling": limit, "limited by": by, "share": speed / limit}
        shown(rows, **facts, error=sampled_error(H, H @ V, V))
    return rows


def molecules(n: int, s: int = 64) -> list[dict[str, Any]]:
    """Tanimoto at fingerprints of 1,024 columns, fused and streamed: bits and counts."""
    rows: list[dict[str, Any]] = []
    for largest, way in itertools.product((1, 9), ("fused", "streamed")):
        X, V = fingerprints(n, largest), normal(n, s, 1)
        H = KernelOperator(kernels.Scale(kernels.Tanimoto(), 1.1), X, 0.1, Compute(way))
        took = median_seconds(lambda: H @ V, 2)  # noqa: B023
        gradient = median_seconds(lambda: H.bilinear(V, V, symmetric=True).backward(), 2)  # noqa: B023
        facts = {"n": n, "levels": int(X.amax(0).sum()), "way": way, "seconds": took, "speed": n**2 / took / 1e12}
        shown(rows, **facts, gradient=gradient, error=sampled_error(H, H @ V, V))
    return rows


def ceiling(H: KernelOperator, s: int) -> tuple[float, str]:
    """The highest speed the chip allows, and by which of its parts."""
    properties = torch.cuda.get_device_properties(0)
    # Per multiprocessor and clock: 16 special functions, 128 float32 and 2048 half-precision multiply-adds.
    clocks = properties.multi_processor_count * 1.755e9 / 1e12
    engine = _engine(H)
    passes = {"split": 4, "coarse": 1, "differences": 0}
    width = sum(passes[leaf.form] * leaf.width for leaf in engine.frame.structure.leaves)
    width += (3 if engine.precision == "high" else 1) * sum(column_widths(s))
    plain = sum(2 * leaf.columns for leaf in engine.frame.structure.leaves if leaf.form == "differences")
    limits = {"special functions": 16 / 2 * clocks, "tensor cores": 2048 / width * clocks}
    if plain:
        limits["differences"] = 128 / plain * clocks
    by = min(limits, key=lambda name: limits[name])
    return limits[by], by


def forms(H: KernelOperator) -> str:
    return "+".join(leaf.form for leaf in _engine(H).frame.structure.leaves)


def _engine(H: KernelOperator) -> Engine:
    assert isinstance(H._tiles, Fused)
    return H._tiles.engine


def sampled_error(H: KernelOperator, found: Tensor, V: Tensor) -> float:
    """Of H V as found, at some of its rows."""
    index = torch.arange(0, H.shape[0], max(1, H.shape[0] // SAMPLE), device=DEVICE)[:SAMPLE]
    with torch.no_grad():
        exact = H.kernel(H.X[index].double(), H.X.double()) @ V.double() + H.noise * V[index].double()
    return relative(found[index], exact)


def peers(n: int, d: int, s: int) -> list[dict[str, Any]]:
    """Torch in row chunks, and torch.compile of a chunk."""
    H, V = KernelOperator(matern(d), normal(n, d), 0.0, Compute("fused")), normal(n, s, 1)
    Z = H.X / d**0.5
    norms = Z.square().sum(1)

    def chunk(x: Tensor) -> Tensor:
        sq = (x.square().sum(1, keepdim=True) + norms - 2.0 * (x @ Z.T)).clamp_min(0.0)
        a = math.sqrt(3.0) * sq.sqrt()
        return 1.21 * (((1.0 + a) * torch.exp(-a)) @ V)

    rows: list[dict[str, Any]] = []
    for name, way, size, tf32 in (
        ("torch, row chunks", chunk, 2000, False),
        ("torch, row chunks, TF32", chunk, 2000, True),
        ("torch.compile, TF32", torch.compile(chunk), 10_000, True),
    ):
        before = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = tf32
        product = lambda: torch.cat([way(x) for x in Z.split(size)])  # noqa: B023, E731
        speed, found = n**2 / median_seconds(product, 2) / 1e12, product()
        torch.backends.cuda.matmul.allow_tf32 = before
        shown(rows, way=name, speed=speed, error=sampled_error(H, found, V))
    shown(rows, way="fused", speed=n**2 / median_seconds(lambda: H @ V, 3) / 1e12, error=sampled_error(H, H @ V, V))
    return rows


def gradients(n: int) -> list[dict[str, Any]]:
    """The gradient pass beside the product, and that of the pathwise estimator with its symmetric weights."""
    rows: list[dict[str, Any]] = []
    for d, s in CASES:
        H, L, R = operator(n, d), normal(n, s, 1), normal(n, s, 2)
        product = median_seconds(lambda: H @ R, 3)  # noqa: B023
        gradient = median_seconds(lambda: H.bilinear(L, R).backward(), 3)  # noqa: B023
        pathwise = median_seconds(lambda: H.bilinear(R, R, symmetric=True).backward(), 3)  # noqa: B023
        X = H.X[:5000].clone().requires_grad_()
        cross = median_seconds(lambda: cross_product(H.kernel, X, H.X, R).sum().backward(), 3)  # noqa: B023
        facts = {"d": d, "columns": s, "product": product, "gradient": gradient, "ratio": gradient / product}
        facts |= {"pathwise": pathwise, "pathwise ratio": pathwise / product}
        shown(rows, **facts, **{"K(X*, X) V and gradient, speed": len(X) * n / cross / 1e12})
    return rows


def sizes(n: int, d: int, s: int) -> list[dict[str, Any]]:
    """Blocks of few rows, and ten times as many rows: speed and the peak of memory."""
    rows: list[dict[str, Any]] = []
    for many, picked in ((n, 1000), (n, 4000), (10 * n, 4000), (10 * n, None)):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        H, V = operator(many, d), normal(many, s, 1)

        def measured(task: str, rows_of: int, took: float) -> None:
            facts = {"n": many, "rows": rows_of, "task": task, "seconds": took}  # noqa: B023
            facts |= {"speed": many * rows_of / took / 1e12}  # noqa: B023
            shown(rows, **facts, **{"peak GB": torch.cuda.max_memory_allocated() / 1e9})

        if picked is None:
            measured("product", many, seconds(lambda: H @ V))  # noqa: B023
            measured("gradient", many, seconds(lambda: H.bilinear(V, V).backward()))  # noqa: B023
        else:
            index = torch.randperm(many, device=DEVICE)[:picked]
            measured("rows", picked, median_seconds(lambda: H.rows(index, V)))  # noqa: B023
            measured("columns", picked, median_seconds(lambda: H.columns(index, V[index])))  # noqa: B023
    return rows


def small(d: int = 18, s: int = 65) -> list[dict[str, Any]]:
    """Milliseconds of single calls at some thousand rows, fused and dense."""
    rows: list[dict[str, Any]] = []
    for n, backend in itertools.product(FEW_ROWS, ("fused", "dense")):
        X, V = normal(n, d), normal(n, s, 1)
        build = lambda: KernelOperator(matern(d), X, 0.1, Compute(backend))  # noqa: B023, E731
        H = build()
        tasks: dict[str, Callable[[], Any]] = {
            "build": build,
            "product": lambda: H @ V,  # noqa: B023
            "gradient": lambda: H.bilinear(V, V).backward(),  # noqa: B023
            "1000 rows": lambda: H.rows(torch.arange(1000, device=DEVICE), V),  # noqa: B023
        }
        shown(rows, n=n, backend=backend, **{name: 1e3 * median_seconds(task) for name, task in tasks.items()})
    return rows


def entries(d: int = 16) -> list[dict[str, Any]]:
    """K written to memory, fused and in torch, for all rows and for a block of them."""
    rows: list[dict[str, Any]] = []
    for n, picked in BLOCKS:
        H = operator(n, d)
        index = torch.randperm(n, device=DEVICE)[:picked]
        sample = index[:SAMPLE]
        with torch.no_grad():
            exact = H.kernel(H.X[sample].double(), H.X[index].double())
        for way in ("fused", "streamed"):
            G = KernelOperator(H.kernel, H.X, 0.1, Compute(way))
            took = median_seconds(lambda: G.between(index, index), 3)  # noqa: B023
            error = relative(G.between(sample, index), exact)
            shown(rows, n=n, block=picked, way=way, seconds=took, speed=picked**2 / took / 1e12, error=error)
    return rows


def sines(paths: int = 64, features: int = 512) -> list[dict[str, Any]]:
    """Prior paths at the data, by one kernel and in torch; 10^12 sines per second."""
    rows: list[dict[str, Any]] = []
    for n, d in PATHS:
        X, source = normal(n, d), torch.Generator().manual_seed(0)
        phi = matern(d).features(features, generator=source, paths=paths)
        W = normal(paths, phi.num, 1)
        with torch.no_grad():
            exact = phi.weighted(X[:SAMPLE].double(), W.double())
            for way, fused in (("fused", waves.runs_fused), ("torch", lambda weight: False)):
                with mock.patch.object(waves, "runs_fused", fused):
                    took = median_seconds(lambda: phi.weighted(X, W), 3)  # noqa: B023
                    error = relative(phi.weighted(X[:SAMPLE], W), exact)
                speed = n * paths * features / 2 / took / 1e12
                shown(rows, n=n, d=d, way=way, seconds=took, speed=speed, error=error)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--processes", type=int, default=14, help="that compile")
    parser.add_argument("--check", action="store_true", help="errors beside their bounds instead of the tables")
    parser.add_argument("--tune", action="store_true", help="times of tiles instead of the tables")
    arguments = parse(parser, rows=5000)
    need_a_device()
    # Both take the cases of this module.
    from benchmarks.hardware.fused_check import check
    from benchmarks.hardware.fused_tuning import tune

    passed = not arguments.check or check(arguments.rows, arguments.processes)
    if arguments.tune:
        tune(min(arguments.rows, 65_536), arguments.processes)
    if arguments.check or arguments.tune:
        sys.exit(not passed)
    n = arguments.rows
    in_parallel(compile_case, [(18, 65, "high"), *((*c, p) for p in PRECISIONS for c in CASES)], arguments.processes)
    parts: dict[str, Callable[[], list[dict[str, Any]]]] = {
        "products": lambda: products(n),
        "molecules": lambda: molecules(n // 2),
        "small": small,
        "entries": entries,
        "sines": sines,
        "gradients": lambda: gradients(n),
        "sizes": lambda: sizes(n, 16, 64),
        "peers": lambda: peers(n, 16, 64),
    }
    tables = {}
    for name, part in parts.items():
        print(f"\n{name}", flush=True)
        tables[name] = part()
        write("fused", tables["products"], n=n, **{k: v for k, v in tables.items() if k != "products"})


if __name__ == "__main__":
    main()
