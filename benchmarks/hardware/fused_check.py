"""Compare the errors of fused products with those stated in docs/performance.md (``fused.py --check``)."""

from __future__ import annotations

import itertools
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from benchmarks.common.recording import table, write
from benchmarks.hardware import fused
from benchmarks.hardware.fused import (
    PRECISIONS,
    fingerprints,
    forms,
    in_parallel,
    matern,
    normal,
    operator,
    relative,
    sampled_error,
)
from pathgp import Compute, kernels
from pathgp.operators import KernelOperator, cross_product, own_product

CHECKED = 1500
# The largest errors that docs/performance.md states, and which of them bounds an operation; None: its precision's.
BOUNDS = {"high": 2e-6, "far out": 4e-6, "medium": 1e-3, "low": 4e-3, "gradient": 1e-3}
OPERATIONS = {
    "product": None,
    "rows": None,
    "columns of K": None,
    "entries": "high",
    "cross": "high",
    "gradients": "gradient",
    "cross gradient": "gradient",
    "own points": "high",
    "own points gradient": "gradient",
}


def check(n: int, processes: int) -> bool:
    """Every kernel, form of points and operation against float64, and products at n rows: whether all is as stated."""
    rows = in_parallel(checked, range(len(list(cases()))), processes)
    for name, precision in itertools.product(("normal", "ones"), PRECISIONS):
        H = operator(n, 16, precision)
        V = normal(n, 64, 1) if name == "normal" else torch.ones(n, 64, device=fused.DEVICE)
        row = {"case": f"n = {n:,}, V {name}", "precision": precision, "columns": 64, "form": forms(H)}
        rows.append(judged(row | {"product": sampled_error(H, H @ V, V)}))
    H, V, index = operator(n, 16), normal(n, 64, 1), torch.randperm(n, device=fused.DEVICE)[:4000]
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
        steps = torch.logspace(-3, 0, n // 2, device=fused.DEVICE).unsqueeze(1) / d**0.5
        X[n // 2 :] = X[: n // 2] + normal(n // 2, d, 1) * steps
        yield f"close points of norm 35, d = {d}", kernels.Matern(1.5, 1.0), X, "high", 3
    for distance in (40.0, 150.0, 500.0):
        X = normal(n, 16)
        X[:3] *= distance / X[:3].norm(dim=1, keepdim=True)
        X[1] = X[0] + 0.1 * X[5]
        yield f"three points {distance:.0f} out, d = 16", kernels.Matern(1.5, 1.0), X, "high", 65
    X = torch.rand(n, 16, device=fused.DEVICE)
    X[n // 2 :] = X[: n // 2] + 0.01 * normal(n // 2, 16, 1) / 4.0
    yield "length scale 0.01, d = 16", kernels.Matern(1.5, 0.01), X, "high", 3
    yield "equal points, d = 26", kernels.Matern(1.5, 5.0), normal(n // 3, 26).repeat(3, 1), "high", 3
    mixed = kernels.Scale(kernels.Matern(2.5, 2.0, active_dims=range(8)) * kernels.Periodic(1.0, 1.0, [8]), 0.8)
    mixed_sum = mixed + kernels.Scale(kernels.RationalQuadratic(1.0, 2.0, active_dims=[9, 10]), 0.5)
    for largest, precision, s in ((1, "high", 65), (9, "high", 65), (9, "low", 65), (50, "high", 65), (1, "high", 3)):
        name = f"Tanimoto, counts to {largest}, d = 1024"
        yield name, kernels.Scale(kernels.Tanimoto(), 1.1), fingerprints(n, largest), precision, s
    molecular = kernels.Scale(kernels.Tanimoto(range(1000)), 0.8) * kernels.Matern(1.5, 3.0, range(1000, 1008))
    yield "Tanimoto times Matern-3/2", molecular, fingerprints(n, 9), "high", 16
    yield "sum of products, d = 16", mixed_sum + kernels.Linear(0.3), normal(n, 16), "high", 65
    # The more columns are prepared, the smaller are the tiles: with four leaves the smallest of all.
    X = normal(n, 128)
    more = [kernels.Scale(kernels.Matern(2.5, 12.0 + k), 0.5) for k in range(3)]
    for many in range(4):
        yield f"{1 + many} leaves, d = 128", sum(more[:many], matern(128)), X, "high", 100
    X = X.clone()
    X[:3] *= 36.0
    yield "three points 36 length scales out, d = 128", matern(128), X, "high", 100


def errors(kernel: kernels.Kernel, X: Tensor, precision: str, s: int) -> dict[str, Any]:
    n = len(X)
    H = KernelOperator(kernel, X, 0.1, Compute(backend="fused", precision=precision)).low_precision
    V, L, D = normal(n, s, 1), normal(n, s, 2), normal(300, s, 3)
    index = torch.randint(n, (len(D),), generator=torch.Generator(fused.DEVICE).manual_seed(4), device=fused.DEVICE)
    exact = kernel(X.double())
    dense = exact.detach().clone()
    dense.diagonal().add_(0.01)
    wanted = torch.autograd.grad((L.double() * (exact @ V.double())).sum(), list(kernel.parameters()))
    found = torch.autograd.grad(H.bilinear(L, V), list(kernel.parameters()))
    pairs = [(torch.cat([g.flatten() for g in gs])) for gs in (found, wanted)]
    ways, own = [], []
    for dtype, backend in ((torch.float32, "fused"), (torch.float64, "streamed")):
        # Counts stay counts.
        A = (X[:400] + 0.01 * bool(X.frac().any())).to(dtype).requires_grad_()
        value = cross_product(kernel, A, X.to(dtype), V.to(dtype), backend=backend)
        ways.append((value, torch.autograd.grad(value, A, L[:400].to(dtype))[0]))
        # Fused where possible: not in more than 64 columns.
        A = A.detach()[: 2 * s].unflatten(0, (s, 2)).requires_grad_()
        value = own_product(kernel, A, X.to(dtype), V.to(dtype))
        own.append((value, torch.autograd.grad(value, A, L[:2].T.to(dtype))[0]))
    return {
        "form": forms(H),
        "product": relative(H @ V, dense @ V.double()),
        "rows": relative(H.rows(index, V), dense[index] @ V.double()),
        "entries": relative(H.between(index, index[:50]), exact.detach()[index][:, index[:50]]),
        "columns of K": relative(H.columns(index, D), dense[:, index] @ D.double()),
        "gradients": relative(*pairs),
        "cross": relative(ways[0][0], ways[1][0]),
        "cross gradient": relative(ways[0][1], ways[1][1]),
        "own points": relative(own[0][0], own[1][0]),
        "own points gradient": relative(own[0][1], own[1][1]),
    }
