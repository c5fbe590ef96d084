"""Fused products on a GPU: speed, accuracy, memory, beside torch in row chunks and torch.compile of the same.

    python benchmarks/fused.py            the tables, written to results/fused.json
    python benchmarks/fused.py --check    every kernel against float64, a line each
    python benchmarks/fused.py --tune     tiles and forms of points, a line each

Matern-3/2, length scale sqrt(d), normal inputs. Speeds are in 10^12 entries of K per second; errors are relative, in
norm, against float64 at a sample of rows. The ceiling of a product is the least of three: two special functions per
entry, the half-precision operations of the tensor cores, and the float32 operations of differences.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import math
import multiprocessing
import traceback
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from typing import Any

import torch
from recording import median_seconds, table, write
from torch import Tensor

from pathgp import kernels
from pathgp.operators import KernelOperator, cross_product
from pathgp.operators.fused import Fused
from pathgp.operators.fused.engine import Engine, Tile, column_widths
from pathgp.operators.fused.points import Frame

DEVICE = "cuda"
SAMPLE = 512


def normal(rows: int, columns: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, columns, generator=torch.Generator(DEVICE).manual_seed(seed), device=DEVICE)


def matern(d: int) -> kernels.Kernel:
    return kernels.Scale(kernels.Matern(1.5, torch.full((d,), d**0.5)), 1.1)


def operator(n: int, d: int, precision: str = "high") -> KernelOperator:
    return KernelOperator(matern(d), normal(n, d), 0.1, "fused", precision=precision).inner


def relative(found: Tensor, expected: Tensor) -> float:
    return float(((found.double() - expected).norm() / expected.norm()).detach())


def in_parallel(action: Callable[[Any], Any], items: Iterable[Any], processes: int) -> list[Any]:
    """Over processes, since compiling takes seconds and one core; what was compiled is found in Triton's cache."""
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        return list(pool.map(action, items))


# The tables

CASES = [(16, 64), *((d, 64) for d in (3, 9, 26, 90)), *((16, s) for s in (1, 16, 65, 128))]
PRECISIONS = ("high", "medium", "low")


def compile_case(case: tuple[int, int, str]) -> None:
    """The kernels of one line of the tables."""
    d, s, precision = case
    H, V = operator(2048, d, precision), normal(2048, s, 1)
    H @ V
    if precision == "high":
        H.bilinear(V, V).backward()
        cross_product(H.kernel, H.X.clone().requires_grad_(), H.X, V).sum().backward()


def products(n: int) -> list[dict[str, Any]]:
    """Speed of K V for dimensions, columns and precisions."""
    rows = []
    for (d, s), precision in itertools.product(CASES, PRECISIONS):
        H, V = operator(n, d, precision), normal(n, s, 1)
        speed = n**2 / median_seconds(lambda: H @ V, 3) / 1e12  # noqa: B023
        limit, by = ceiling(H, s)
        facts = {"d": d, "columns": s, "precision": precision, "form": forms(H), "speed": speed}
        rows.append({**facts, "ceiling": limit, "limited by": by, "share": speed / limit, "error": sampled_error(H, V)})
        print(table(rows[-1:]), flush=True)
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


def sampled_error(H: KernelOperator, V: Tensor) -> float:
    """Of H V at some of its rows."""
    index = torch.arange(0, H.shape[0], max(1, H.shape[0] // SAMPLE), device=DEVICE)[:SAMPLE]
    with torch.no_grad():
        exact = H.kernel(H.X[index].double(), H.X.double()) @ V.double() + 0.01 * V[index].double()
    return relative((H @ V)[index], exact)


def peers(n: int, d: int, s: int) -> list[dict[str, Any]]:
    """Torch in row chunks, and torch.compile of a chunk with TF32."""
    H, V = operator(n, d), normal(n, s, 1)
    Z = H.X / d**0.5
    norms = Z.square().sum(1)

    def chunk(x: Tensor) -> Tensor:
        sq = (x.square().sum(1, keepdim=True) + norms - 2.0 * (x @ Z.T)).clamp_min(0.0)
        a = math.sqrt(3.0) * sq.sqrt()
        return 1.21 * (((1.0 + a) * torch.exp(-a)) @ V)

    def chunks(way: Callable[[Tensor], Tensor], size: int) -> Tensor:
        return torch.cat([way(x) for x in Z.split(size)])

    rows = []
    exact = KernelOperator(H.kernel, H.X, 0.0, "fused") @ V
    for name, way, size, tf32 in (
        ("torch, row chunks", chunk, 2000, False),
        ("torch, row chunks, TF32", chunk, 2000, True),
        ("torch.compile, TF32", torch.compile(chunk), 2000, True),
        ("torch.compile, TF32, large chunks", torch.compile(chunk), 10_000, True),
    ):
        before = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = tf32
        speed = n**2 / median_seconds(lambda: chunks(way, size), 3) / 1e12  # noqa: B023
        error = relative(chunks(way, size), exact.double())
        torch.backends.cuda.matmul.allow_tf32 = before
        rows.append({"way": name, "speed": speed, "error": error})
    return rows


def gradients(n: int) -> list[dict[str, Any]]:
    """The gradient pass beside the product."""
    rows = []
    for d, s in CASES:
        H, L, R = operator(n, d), normal(n, s, 1), normal(n, s, 2)
        product = median_seconds(lambda: H @ R, 3)  # noqa: B023
        gradient = median_seconds(lambda: H.bilinear(L, R).backward(), 3)  # noqa: B023
        X = H.X[:5000].clone().requires_grad_()
        cross = median_seconds(lambda: cross_product(H.kernel, X, H.X, R).sum().backward(), 3)  # noqa: B023
        facts = {"d": d, "columns": s, "product": product, "gradient": gradient, "ratio": gradient / product}
        rows.append({**facts, "K(X*, X) V and gradient, speed": 5000 * n / cross / 1e12})
        print(table(rows[-1:]), flush=True)
    return rows


def sizes(d: int, s: int) -> list[dict[str, Any]]:
    """Large n, and blocks of few rows: speed and the peak of memory."""
    rows = []
    for n, picked in ((100_000, 1000), (100_000, 4000), (1_000_000, 1000), (1_000_000, 4000), (1_000_000, None)):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        H, V = operator(n, d), normal(n, s, 1)
        index = None if picked is None else torch.randperm(n, device=DEVICE)[:picked]
        action = (lambda: H @ V) if index is None else (lambda: H.rows(index, V))  # noqa: B023
        took = median_seconds(action, 1 if index is None else 5)
        entries = n * (n if picked is None else picked)
        facts = {"n": n, "rows": picked or n, "task": "product", "seconds": took, "speed": entries / took / 1e12}
        rows.append({**facts, "peak GB": torch.cuda.max_memory_allocated() / 1e9})
        if index is not None:
            took = median_seconds(lambda: H.columns(index, V[index]), 5)  # noqa: B023
            facts = {"n": n, "rows": picked, "task": "columns", "seconds": took, "speed": entries / took / 1e12}
            rows.append({**facts, "peak GB": torch.cuda.max_memory_allocated() / 1e9})
    torch.cuda.reset_peak_memory_stats()
    took = median_seconds(lambda: H.bilinear(V, V).backward(), 1)
    facts = {"n": n, "rows": n, "task": "gradient", "seconds": took, "speed": n**2 / took / 1e12}
    rows.append({**facts, "peak GB": torch.cuda.max_memory_allocated() / 1e9})
    return rows


# Checks


def check(processes: int) -> None:
    """Every kernel, form of points and operation against float64."""
    print(table(in_parallel(checked, range(len(list(cases()))), processes)))
    for V in (normal(100_000, 64, 1), torch.ones(100_000, 64, device=DEVICE)):
        for precision in ("high", "medium", "low"):
            print("n = 100,000,", precision, f"{sampled_error(operator(100_000, 16, precision), V):.1e}")
    H, V = operator(100_000, 16), normal(100_000, 64, 1)
    index = torch.randperm(100_000, device=DEVICE)[:4000]
    print("repeats itself:", bool(torch.equal(H.rows(index, V), H.rows(index, V))))


def checked(number: int) -> dict[str, Any]:
    """One line of the table, with a traceback on the screen where it fails."""
    name, kernel, X, precision, s = next(itertools.islice(cases(), number, None))
    row: dict[str, Any] = {"case": name, "precision": precision, "columns": s}
    try:
        return row | errors(kernel, X, precision, s)
    except Exception:
        print(f"{name}, {precision}, {s} columns\n{traceback.format_exc()}", flush=True)
        failed = dict.fromkeys(("product", "rows", "columns of K", "gradients", "cross", "cross gradient"))
        return row | {"form": "FAILED"} | failed


def cases() -> Iterator[tuple[str, kernels.Kernel, Tensor, str, int]]:
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
        yield f"{name}, d = {d}", make(d), normal(1500, d), "high", 3
    for d, precision in itertools.product((1, 9, 17, 26, 90), ("high", "medium", "low")):
        yield f"Matern-3/2, d = {d}", matern(d), normal(1500, d), precision, 16
    for s in (1, 16, 65, 100, 128, 200):
        yield "Matern-3/2, d = 16", matern(16), normal(1500, 16), "high", s
    yield "offset 3,000, d = 16", matern(16), normal(1500, 16) + 3000.0, "high", 3
    for d in (3, 16, 90):
        X = normal(1500, d)
        X = 35.0 * X / X.norm(dim=1, keepdim=True)
        X[750:] = X[:750] + normal(750, d, 1) * torch.logspace(-3, 0, 750, device=DEVICE).unsqueeze(1) / d**0.5
        yield f"close points of norm 35, d = {d}", kernels.Matern(1.5, 1.0), X, "high", 3
    X = torch.rand(1500, 16, device=DEVICE)
    X[750:] = X[:750] + 0.01 * normal(750, 16, 1) / 4.0
    yield "length scale 0.01, d = 16", kernels.Matern(1.5, 0.01), X, "high", 3
    yield "equal points, d = 26", kernels.Matern(1.5, 5.0), normal(500, 26).repeat(3, 1), "high", 3
    mixed = kernels.Scale(kernels.Matern(2.5, 2.0, active_dims=range(8)) * kernels.Periodic(1.0, 1.0, [8]), 0.8)
    mixed_sum = mixed + kernels.Scale(kernels.RationalQuadratic(1.0, 2.0, active_dims=[9, 10]), 0.5)
    yield "sum of products, d = 16", mixed_sum + kernels.Linear(0.3), normal(1500, 16), "high", 65


def errors(kernel: kernels.Kernel, X: Tensor, precision: str, s: int) -> dict[str, Any]:
    n = len(X)
    H = KernelOperator(kernel, X, 0.1, "fused", precision=precision).inner
    V, L = normal(n, s, 1), normal(n, s, 2)
    index = torch.randint(n, (300,), device=DEVICE)
    exact = kernel(X.double())
    dense = exact.detach().clone()
    dense.diagonal().add_(0.01)
    wanted = torch.autograd.grad((L.double() * (exact @ V.double())).sum(), list(kernel.parameters()))
    found = torch.autograd.grad(H.bilinear(L, V), list(kernel.parameters()))
    pairs = [(torch.cat([g.flatten() for g in gs])) for gs in (found, wanted)]
    ways = []
    for dtype, backend in ((torch.float32, "fused"), (torch.float64, "streamed")):
        A = (X[:400] + 0.01).to(dtype).requires_grad_()
        value = cross_product(kernel, A, X.to(dtype), V.to(dtype), backend=backend)
        ways.append((value, torch.autograd.grad(value, A, L[:400].to(dtype))[0]))
    return {
        "form": forms(H),
        "product": relative(H @ V, dense @ V.double()),
        "rows": relative(H.rows(index, V), dense[index] @ V.double()),
        "columns of K": relative(H.columns(index, V[:300]), dense[:, index] @ V[:300].double()),
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
PULL_TILES = [
    Tile(128, 64, 8, 2),
    Tile(128, 64, 8, 1),
    Tile(128, 32, 8, 2),
    Tile(64, 64, 4, 2),
    Tile(64, 64, 4, 1),
    Tile(64, 32, 4, 2),
]
Setting = tuple[str, int, int, str, int, Tile]


def settings() -> list[Setting]:
    """(task, d, columns, precision, dimensions up to which differences are taken, tile)."""
    chosen = []
    for d, s, precision, few in (
        (16, 64, "high", 0),
        (16, 64, "high", 16),
        (16, 64, "medium", 0),
        (16, 64, "low", 0),
        (3, 64, "high", 3),
        (3, 64, "high", 0),
        (3, 64, "low", 3),
        (3, 16, "high", 3),
        (8, 64, "high", 8),
        (8, 64, "high", 0),
        (26, 64, "high", 0),
        (90, 64, "high", 0),
        (90, 64, "low", 0),
        (16, 1, "high", 0),
        (16, 65, "high", 0),
        (16, 128, "high", 0),
    ):
        chosen += [("product", d, s, precision, few, tile) for tile in PRODUCT_TILES]
    for d, s, few in ((16, 64, 0), (16, 64, 16), (3, 64, 3), (3, 64, 0), (90, 64, 0), (16, 65, 0)):
        chosen += [("pull", d, s, "high", few, tile) for tile in PULL_TILES]
    return chosen


def prepared(setting: Setting, n: int) -> Callable[[], Any]:
    task, d, s, precision, few, tile = setting
    H = operator(256, d, precision)
    assert isinstance(H._tiles, Fused)
    X, expression = normal(n, d), H._tiles.expression
    with torch.no_grad():
        U = expression.points(X, torch.zeros(d, dtype=torch.float64, device=DEVICE))
        frame = Frame.around(expression, [U], precision, few=few)
        points = frame.pack(U)
    engine = replace(Engine.of(expression, frame, precision), tile=tile)
    V = normal(n, s, 1)
    if task == "product":
        return lambda: engine.product(points, points, V)
    both = torch.cat([V, V], 1)
    return lambda: engine.pull(points, points, both, both)


def compile_one(setting: Setting) -> None:
    """The kernel of a setting; those that do not fit the chip say so when they are timed."""
    with contextlib.suppress(Exception):
        prepared(setting, 2048)()


def tune(n: int, processes: int) -> None:
    """Compile everything in parallel, then time one after the other."""
    in_parallel(compile_one, settings(), processes)
    rows = []
    for setting in settings():
        task, d, s, precision, few, tile = setting
        facts = {"task": task, "d": d, "columns": s, "precision": precision, "few": few}
        facts |= {"tile": f"{tile.rows}x{tile.columns}, {tile.warps} warps, {tile.stages} stages"}
        try:
            speed = n**2 / median_seconds(prepared(setting, n), 3) / 1e12
        except Exception as error:
            rows.append({**facts, "speed": f"{type(error).__name__}: {str(error)[:60]}"})
            torch.cuda.synchronize()
        else:
            rows.append({**facts, "speed": speed})
    print(table(rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--processes", type=int, default=14, help="that compile")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--tune", action="store_true")
    arguments = parser.parse_args()
    if arguments.check:
        check(arguments.processes)
    if arguments.tune:
        tune(min(arguments.rows, 65_536), arguments.processes)
    if arguments.check or arguments.tune:
        return
    n = arguments.rows
    in_parallel(compile_case, [(*case, p) for case in CASES for p in PRECISIONS], arguments.processes)
    tables = {"peers": peers(n, 16, 64), "gradients": gradients(n), "sizes": sizes(16, 64)}
    rows = products(n)
    for name, part in {"products": rows, **tables}.items():
        print(f"\n{name}\n{table(part)}")
    write("fused", rows, n=n, **tables)


if __name__ == "__main__":
    main()
