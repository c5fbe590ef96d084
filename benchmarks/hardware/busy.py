"""Products K V on a CPU, alone and next to a process that keeps one core busy, in units of a plain matrix product.

    python -m benchmarks.hardware.busy [--rows 10000] [--runs 5]        written to results/busy.json

Matern-3/2, normal inputs. "rows" and "columns" use a fifth of the rows; "gradient" is ``bilinear`` and its backward
pass. All methods of a case are timed in turn; medians are reported, divided by the median of the plain product of the
same shape on the quiet machine.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from benchmarks.common.options import parse
from benchmarks.common.recording import seconds, table, write
from pathgp import Compute, kernels
from pathgp.operators import KernelOperator

# Columns of X, columns of V, dtype.
CASES = [
    (3, 65, torch.float32),
    (16, 65, torch.float32),
    (3, 65, torch.float64),
    (16, 65, torch.float64),
    (16, 1, torch.float32),
    (16, 1, torch.float64),
]


@contextmanager
def busy_core() -> Iterator[None]:
    """Another process that computes all the time."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def ways(n: int, d: int, s: int, dtype: torch.dtype) -> dict[str, Callable[[], Any]]:
    generator = torch.Generator().manual_seed(0)
    X, V, L = (torch.randn(n, columns, generator=generator, dtype=dtype) for columns in (d, s, s))
    kernel = kernels.Scale(kernels.Matern(1.5, torch.full((d,), d**0.5)), 1.0)
    streamed, dense = (KernelOperator(kernel, X, 0.1, Compute(backend)) for backend in ("streamed", "dense"))
    index = torch.randperm(n, generator=generator)[: n // 5]
    plain = dense.between(torch.arange(n), torch.arange(n))
    return {
        "plain": lambda: plain @ V,
        "dense": lambda: dense @ V,
        "streamed": lambda: streamed @ V,
        "rows": lambda: streamed.rows(index, V),
        "columns": lambda: streamed.columns(index, L[index]),
        "gradient": lambda: streamed.bilinear(L, V).backward(),
    }


def medians(actions: dict[str, Callable[[], Any]], runs: int) -> dict[str, float]:
    for action in actions.values():
        action()
    times = [{name: seconds(action) for name, action in actions.items()} for _ in range(runs)]
    return {name: statistics.median(run[name] for run in times) for name in actions}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--runs", type=int, default=5)
    arguments = parse(parser, rows=600, runs=1)
    rows = []
    for d, s, dtype in CASES:
        actions = ways(arguments.rows, d, s, dtype)
        quiet = medians(actions, arguments.runs)
        with busy_core():
            busy = medians(actions, arguments.runs)
        case = {"d": d, "s": s, "dtype": str(dtype).removeprefix("torch.")}
        for machine, found in (("quiet", quiet), ("busy", busy)):
            relative = {name: time / quiet["plain"] for name, time in found.items() if name != "plain" or found is busy}
            rows.append({**case, "machine": machine, "plain": 1.0, **relative, "seconds of plain": quiet["plain"]})
        print(table(rows[-2:]), flush=True)
    print("written to", write("busy", rows, n=arguments.rows))


if __name__ == "__main__":
    main()
