"""Fused products on a GPU: speed, accuracy, memory, beside torch in row chunks and torch.compile of the same.

    python benchmarks/fused.py            the tables, written to results/fused.json
    python benchmarks/fused.py --check    every kernel against float64, written to results/fused_check.json; fails where
                                          an error is above what the documentation states
    python benchmarks/fused.py --tune     tiles and forms of points, a line each

Matern-3/2, length scale sqrt(d), normal inputs. Speeds are in 10^12 entries of K per second; errors are relative, in
norm, against float64 at a sample of rows. The ceiling of a product is the least of three: two special functions per
entry, the half-precision operations of the tensor cores, and the float32 operations of differences.

Beside products: Tanimoto on fingerprints of 1,024 columns, gradients, blocks of rows, a million rows with the peak of
memory, single calls at some thousand rows, entries of K written to memory, and the sums of sines of prior paths.
"""

from __future__ import annotations

import argparse
import itertools
import math
import multiprocessing
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from typing import Any
from unittest import mock

import torch
from recording import median_seconds, seconds, table, write
from torch import Tensor

from pathgp import kernels
from pathgp.features import waves
from pathgp.operators import KernelOperator, cross_product
from pathgp.operators.fused import Fused
from pathgp.operators.fused import engine as launches
from pathgp.operators.fused.engine import Engine, Tile, column_widths
from pathgp.operators.fused.points import Extent, Frame

DEVICE = "cuda"
SAMPLE = 512


def normal(rows: int, columns: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, columns, generator=torch.Generator(DEVICE).manual_seed(seed), device=DEVICE)


def matern(d: int) -> kernels.Kernel:
    return kernels.Scale(kernels.Matern(1.5, torch.full((d,), d**0.5)), 1.1)


def operator(n: int, d: int, precision: str = "high") -> KernelOperator:
    return KernelOperator(matern(d), normal(n, d), 0.1, "fused", precision=precision).inner


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
        H = KernelOperator(kernels.Scale(kernels.Tanimoto(), 1.1), X, 0.1, way)
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
    H, V = KernelOperator(matern(d), normal(n, d), 0.0, "fused"), normal(n, s, 1)
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
        build = lambda: KernelOperator(matern(d), X, 0.1, backend)  # noqa: B023, E731
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
            G = KernelOperator(H.kernel, H.X, 0.1, way)
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


# Checks


CHECKED = 1500
# The largest errors that docs/performance.md states, and which of them bounds an operation; None: its precision's.
BOUNDS = {"high": 2e-6, "far out": 4e-6, "medium": 1e-3, "low": 4e-3, "gradient": 3e-4}
OPERATIONS = {
    "product": None,
    "rows": None,
    "columns of K": None,
    "entries": "high",
    "cross": "high",
    "gradients": "gradient",
    "cross gradient": "gradient",
}


def check(n: int, processes: int) -> bool:
    """Every kernel, form of points and operation against float64, and products at n rows: whether all is as stated."""
    rows = in_parallel(checked, range(len(list(cases()))), processes)
    for name, precision in itertools.product(("normal", "ones"), PRECISIONS):
        H, V = operator(n, 16, precision), normal(n, 64, 1) if name == "normal" else torch.ones(n, 64, device=DEVICE)
        row = {"case": f"n = {n:,}, V {name}", "precision": precision, "columns": 64, "form": forms(H)}
        rows.append(judged(row | {"product": sampled_error(H, H @ V, V)}))
    H, V, index = operator(n, 16), normal(n, 64, 1), torch.randperm(n, device=DEVICE)[:4000]
    repeats = bool(torch.equal(H.rows(index, V), H.rows(index, V)))
    above = [row for row in rows if row["above"]]
    write("fused_check", rows, repeats=repeats, above=len(above))
    print(table(rows), f"repeats itself: {repeats}", f"{len(rows)} cases, {len(above)} above their bound", sep="\n")
    return repeats and not above


def judged(row: dict[str, Any]) -> dict[str, Any]:
    """A line of the table with the bound of its products, and the operations whose errors are above theirs."""
    far = "triple" in row["form"] and row["precision"] == "high"
    bounds = {name: BOUNDS[of or ("far out" if far else row["precision"])] for name, of in OPERATIONS.items()}
    above = [name for name in bounds if name in row and not row[name] <= bounds[name]]
    errors = {name: row.get(name) for name in OPERATIONS}
    return row | errors | {"bound": bounds["product"], "above": ", ".join(above)}


def checked(number: int) -> dict[str, Any]:
    """One line of the table, with a traceback on the screen where it fails."""
    name, kernel, X, precision, s = next(itertools.islice(cases(), number, None))
    row: dict[str, Any] = {"case": name, "precision": precision, "columns": s}
    try:
        return judged(row | errors(kernel, X, precision, s))
    except Exception:
        print(f"{name}, {precision}, {s} columns\n{traceback.format_exc()}", flush=True)
        return judged(row | {"form": "FAILED"}) | {"above": "everything"}


def cases() -> Iterator[tuple[str, kernels.Kernel, Tensor, str, int]]:
    n = CHECKED
    leaves: dict[str, Callable[[int], kernels.Kernel]] = {
        "SE": lambda d: kernels.SquaredExponential(d**0.5),
        "Matern-1/2": lambda d: kernels.Matern(0.5, d**0.5),
        "Matern-3/2": lambda d: kernels.Matern(1.5, d**0.5),
        "Matern-5/2": lambda d: kernels.Matern(2.5, d**0.5),
        "RQ": lambda d: kernels.RationalQuadratic(1.3, d**0.5),
        "Periodic": lambda d: kernels.Periodic(2.0, d**0.5),
        "Linear": lambda d: kernels.Linear(0.5, bias=0.3),
    }
    for (name, make), d in itertools.product(leaves.items(), (3, 16)):
        yield f"{name}, d = {d}", make(d), normal(n, d), "high", 3
    for (name, make), precision in itertools.product(leaves.items(), ("medium", "low")):
        yield f"{name}, d = 16", make(16), normal(n, 16), precision, 3
        if name != "Linear":
            X = normal(n, 16)
            X[:3] *= 36.0 * 4.0 / X[:3].norm(dim=1, keepdim=True)
            yield f"{name}, three points 36 length scales out, d = 16", make(16), X, precision, 3
    for d, precision in itertools.product((1, 9, 17, 26, 90), ("high", "medium", "low")):
        yield f"Matern-3/2, d = {d}", matern(d), normal(n, d), precision, 16
    for s in (1, 16, 65, 100, 128, 200):
        yield "Matern-3/2, d = 16", matern(16), normal(n, 16), "high", s
    yield "offset 3,000, d = 16", matern(16), normal(n, 16) + 3000.0, "high", 3
    for d in (3, 16, 90):
        X = normal(n, d)
        X = 35.0 * X / X.norm(dim=1, keepdim=True)
        steps = torch.logspace(-3, 0, n // 2, device=DEVICE).unsqueeze(1) / d**0.5
        X[n // 2 :] = X[: n // 2] + normal(n // 2, d, 1) * steps
        yield f"close points of norm 35, d = {d}", kernels.Matern(1.5, 1.0), X, "high", 3
    for distance in (40.0, 150.0, 500.0):
        X = normal(n, 16)
        X[:3] *= distance / X[:3].norm(dim=1, keepdim=True)
        X[1] = X[0] + 0.1 * X[5]
        yield f"three points {distance:.0f} out, d = 16", kernels.Matern(1.5, 1.0), X, "high", 65
    X = torch.rand(n, 16, device=DEVICE)
    X[n // 2 :] = X[: n // 2] + 0.01 * normal(n // 2, 16, 1) / 4.0
    yield "length scale 0.01, d = 16", kernels.Matern(1.5, 0.01), X, "high", 3
    yield "equal points, d = 26", kernels.Matern(1.5, 5.0), normal(n // 3, 26).repeat(3, 1), "high", 3
    mixed = kernels.Scale(kernels.Matern(2.5, 2.0, active_dims=range(8)) * kernels.Periodic(1.0, 1.0, [8]), 0.8)
    mixed_sum = mixed + kernels.Scale(kernels.RationalQuadratic(1.0, 2.0, active_dims=[9, 10]), 0.5)
    for largest, precision in ((1, "high"), (9, "high"), (9, "low"), (50, "high")):
        name = f"Tanimoto, counts to {largest}, d = 1024"
        yield name, kernels.Scale(kernels.Tanimoto(), 1.1), fingerprints(n, largest), precision, 65
    molecular = kernels.Scale(kernels.Tanimoto(range(1000)), 0.8) * kernels.Matern(1.5, 3.0, range(1000, 1008))
    yield "Tanimoto times Matern-3/2", molecular, fingerprints(n, 9), "high", 16
    yield "sum of products, d = 16", mixed_sum + kernels.Linear(0.3), normal(n, 16), "high", 65


def errors(kernel: kernels.Kernel, X: Tensor, precision: str, s: int) -> dict[str, Any]:
    n = len(X)
    H = KernelOperator(kernel, X, 0.1, "fused", precision=precision).inner
    V, L, D = normal(n, s, 1), normal(n, s, 2), normal(300, s, 3)
    index = torch.randint(n, (len(D),), generator=torch.Generator(DEVICE).manual_seed(4), device=DEVICE)
    exact = kernel(X.double())
    dense = exact.detach().clone()
    dense.diagonal().add_(0.01)
    wanted = torch.autograd.grad((L.double() * (exact @ V.double())).sum(), list(kernel.parameters()))
    found = torch.autograd.grad(H.bilinear(L, V), list(kernel.parameters()))
    pairs = [(torch.cat([g.flatten() for g in gs])) for gs in (found, wanted)]
    ways = []
    for dtype, backend in ((torch.float32, "fused"), (torch.float64, "streamed")):
        # Counts stay counts.
        A = (X[:400] + 0.01 * bool(X.frac().any())).to(dtype).requires_grad_()
        value = cross_product(kernel, A, X.to(dtype), V.to(dtype), backend=backend)
        ways.append((value, torch.autograd.grad(value, A, L[:400].to(dtype))[0]))
    return {
        "form": forms(H),
        "product": relative(H @ V, dense @ V.double()),
        "rows": relative(H.rows(index, V), dense[index] @ V.double()),
        "entries": relative(H.between(index, index[:50]), exact.detach()[index][:, index[:50]]),
        "columns of K": relative(H.columns(index, D), dense[:, index] @ D.double()),
        "gradients": relative(*pairs),
        "cross": relative(ways[0][0], ways[1][0]),
        "cross gradient": relative(ways[0][1], ways[1][1]),
    }


# Tuning

PRODUCT_TILES = [
    Tile(128, 64, 8, 2),
    Tile(128, 64, 8, 3),
    Tile(128, 64, 4, 2),
    Tile(128, 128, 8, 2),
    Tile(128, 32, 8, 3),
    Tile(64, 64, 4, 2),
    Tile(64, 64, 4, 3),
    Tile(64, 128, 4, 2),
]
# With the columns of L and R in one launch.
PULL_TILES = [
    (Tile(128, 64, 8, 2), 96),
    (Tile(128, 32, 8, 2), 96),
    (Tile(128, 32, 8, 2), 144),
    (Tile(128, 64, 8, 2), 144),
    (Tile(128, 64, 8, 1), 96),
    (Tile(64, 32, 4, 2), 96),
    (Tile(64, 32, 4, 2), 144),
    (Tile(64, 64, 4, 2), 96),
    (Tile(64, 64, 4, 1), 96),
]
Setting = tuple[str, int, int, Tile, int]


def settings() -> list[Setting]:
    """(task, d, columns, tile, columns in one launch)."""
    cases = ((16, 64), (16, 65), (3, 16), (26, 65))
    found = [("product", d, s, tile, 128) for d, s in cases for tile in PRODUCT_TILES]
    return found + [("pull", d, s, *setting) for d, s in cases for setting in PULL_TILES]


def prepared(setting: Setting, n: int) -> Callable[[], Any]:
    task, d, s, tile, together = setting
    H = operator(256, d)
    assert isinstance(H._tiles, Fused)
    X, expression = normal(n, d), H._tiles.expression
    with torch.no_grad():
        U = expression.points(X, torch.zeros(d, dtype=torch.float64, device=DEVICE))
        frame = Frame.around(Extent.of(expression, U))
        points = frame.pack(U)
    engine = replace(Engine.of(frame), tile=tile)
    V = normal(n, s, 1)
    if task == "product":
        return lambda: engine.add_product(points, points, V, torch.zeros_like(V))
    both = torch.cat([V, V], 1)
    launches._WEIGHTS = together
    return lambda: engine.pull(points, points, both, both)


def timed(setting: Setting, n: int) -> float | str:
    """The speed of a setting, or what went wrong."""
    try:
        return n**2 / median_seconds(prepared(setting, n), 3) / 1e12
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:80]}"


def compile_one(setting: Setting) -> None:
    """The kernel of a setting; those that do not fit the chip say so when they are timed."""
    timed(setting, 2048)


def tune(n: int, processes: int) -> None:
    """Compile everything in parallel, then time one after the other in a process that a failure does not outlive."""
    in_parallel(compile_one, settings(), processes)
    rows: list[dict[str, Any]] = []
    pool = None
    for setting in settings():
        task, d, s, tile, together = setting
        pool = pool or ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
        try:
            speed = pool.submit(timed, setting, n).result()
        except BrokenProcessPool as error:
            speed = str(error)
        if "CUDA" in str(speed) or "process" in str(speed):
            # After an error of the device nothing else runs in that process.
            pool.shutdown()
            pool = None
        text = f"{tile.rows}x{tile.columns}, {tile.warps} warps, {tile.stages} stages"
        shown(rows, task=task, d=d, columns=s, tile=text, together=together, speed=speed)
    if pool:
        pool.shutdown()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--processes", type=int, default=14, help="that compile")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--tune", action="store_true")
    arguments = parser.parse_args()
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
