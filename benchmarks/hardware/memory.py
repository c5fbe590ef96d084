"""Peak resident memory of predictions at a million rows, and of a streamed product.

    python -m benchmarks.hardware.memory [--rows 1000000] [--what mean variance paths product]

Mean, variance and 64 paths at a million rows from n = 5,000 (float32, three columns), and a product with K of
n = 100,000 within a budget of 200 MB, where K would take 40 GB. Each is measured in its own process, as the peak
resident memory minus the memory before the model was conditioned or the operator was built; the test inputs exist
before that. Sizes in GB. CPU and Linux only.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from typing import Any

import torch

import pathgp
from benchmarks.common.options import parse
from benchmarks.common.peak import reset_peak, resident
from benchmarks.common.recording import table, write
from pathgp.kernels import Matern, Scale
from pathgp.operators import KernelOperator

SAMPLES = 64
WHAT = ("mean", "variance", "paths", "product")


def prediction(what: str, n: int, rows: int) -> dict[str, Any]:
    """Peak and seconds of one kind of prediction."""
    generator = torch.Generator().manual_seed(0)
    X, Xs = torch.rand(n, 3, generator=generator), torch.rand(rows, 3, generator=generator)
    y = torch.sin(5 * X.sum(1)) + 0.1 * torch.randn(n, generator=generator)
    start = resident("VmRSS")
    post = pathgp.GP(Scale(Matern(1.5, 0.3), 1.0), 0.1).condition(X, y, samples=SAMPLES, generator=generator)
    reset_peak()
    began = time.perf_counter()
    predict = {"mean": post.mean, "variance": post.variance, "paths": post.paths}[what]
    result = predict(Xs)
    seconds = time.perf_counter() - began
    return {
        "what": what,
        "n": n,
        "rows": rows,
        "matrix_gb": 4e-9 * n * rows,
        "result_gb": 1e-9 * result.numel() * result.element_size(),
        "peak_gb": 1e-9 * (resident("VmHWM") - start),
        "limit_gb": 1.0,
        "seconds": seconds,
    }


def product(n: int, memory: int) -> dict[str, Any]:
    """Peak and seconds of one streamed product with 16 columns."""
    generator = torch.Generator().manual_seed(0)
    X, V = torch.rand(n, 3, generator=generator), torch.randn(n, 16, generator=generator)
    # A first, small product: libraries take their work space once.
    KernelOperator(Matern(1.5, 0.3), X[:2000], 0.1, pathgp.Compute(backend="streamed", memory=memory)) @ V[:2000]
    start = resident("VmRSS")
    reset_peak()
    began = time.perf_counter()
    result = KernelOperator(Matern(1.5, 0.3), X, 0.1, pathgp.Compute(backend="streamed", memory=memory)) @ V
    seconds = time.perf_counter() - began
    return {
        "what": "streamed product",
        "n": n,
        "rows": n,
        "matrix_gb": 4e-9 * n**2,
        "result_gb": 1e-9 * result.numel() * result.element_size(),
        "peak_gb": 1e-9 * (resident("VmHWM") - start),
        "limit_gb": 1e-9 * memory,
        "seconds": seconds,
    }


def alone(*arguments: str) -> dict[str, Any]:
    """One measurement in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.hardware.memory", *arguments]
    found: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="test rows")
    parser.add_argument("--training-rows", type=int, default=5000)
    parser.add_argument("--what", nargs="*", choices=WHAT, default=list(WHAT))
    parser.add_argument("--only", help=argparse.SUPPRESS)
    chosen = parse(parser, rows=10_000, training_rows=500, what=["mean"])
    if chosen.only:
        found = (
            product(chosen.rows, 200_000_000)
            if chosen.only == "product"
            else prediction(chosen.only, chosen.training_rows, chosen.rows)
        )
        print(json.dumps(found))
        return
    rows = {what: chosen.rows // 10 if what == "product" else chosen.rows for what in chosen.what}
    results = [
        alone("--only", what, "--rows", str(number), "--training-rows", str(chosen.training_rows))
        for what, number in rows.items()
    ]
    print(table(results))
    write("memory", results, measured_on="CPU")
    if any(r["peak_gb"] > r["limit_gb"] for r in results):
        raise SystemExit("a peak exceeds its limit")


if __name__ == "__main__":
    main()
