"""Products K V on the CPU: streamed and dense, compared with GPyTorch and with a plain matrix product.

    python -m benchmarks.hardware.matvec [--rows 15000] [--runs 5]

Matern-3/2, d = 18, 65 columns, float32. All methods are timed in the same run, interleaved; medians are reported.
GPyTorch is timed without gradients, and recording for gradients as in a training step. Two methods that the library
does not use are timed too: row chunks of K compiled by torch.compile, and K stored in bfloat16, for which the error of
a product is compared with the noise of four data sets.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.common.options import parse
from benchmarks.common.recording import require, seconds, table, write
from benchmarks.common.uci import UCI, uci
from pathgp import Compute, kernels
from pathgp.operators import KernelOperator

# Rows of K at a time, some MB of them.
CHUNK = 256


def matern(X: torch.Tensor, Z: torch.Tensor, V: torch.Tensor) -> torch.Tensor:
    """K(X, Z) V with unit length scales, as one would write it down."""
    squared = X.square().sum(1, keepdim=True) + Z.square().sum(1) - 2.0 * X @ Z.T
    r = math.sqrt(3.0) * squared.clamp_min(0.0).sqrt()
    return ((1.0 + r) * torch.exp(-r)) @ V


def chunked(product: Callable[..., torch.Tensor], X: torch.Tensor, V: torch.Tensor) -> torch.Tensor:
    """(K + 0.01 I) V, a chunk of rows after the other."""
    return torch.cat([product(part, X, V) for part in X.split(CHUNK)]) + 0.01 * V


def roughness(name: str) -> dict[str, Any]:
    """The error of a product with K and V in bfloat16, at some rows of a data set, relative to its noise."""
    problem = uci(name)
    generator, n = torch.Generator().manual_seed(0), len(problem.X)
    index, v = torch.randperm(n, generator=generator)[:512], torch.randn(n, 1, generator=generator)
    with torch.no_grad():
        K = problem.kernel()(problem.X[index], problem.X)
        off = K.bfloat16().float() @ v.bfloat16().float() - K @ v
    error = float(off.square().mean().sqrt()) / problem.noise**2
    return {"set": name, "noise over signal": problem.noise / problem.signal, "error over noise": error}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=15_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True, help="time torch.compile")
    arguments = parse(parser, rows=300, runs=1, compile=False)
    n, d, s = arguments.rows, 18, 65
    generator = torch.Generator().manual_seed(0)
    X, V = torch.randn(n, d, generator=generator), torch.randn(n, s, generator=generator)

    kernel = kernels.Scale(kernels.Matern(1.5, torch.ones(d)), 1.0)
    streamed = KernelOperator(kernel, X, 0.1, Compute("streamed"))
    dense = KernelOperator(kernel, X, 0.1, Compute("dense"))
    plain = torch.randn(n, n, generator=generator)
    gpytorch = require("gpytorch")
    peer = gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(nu=1.5, ard_num_dims=d))
    peer.outputscale = 1.0
    peer.base_kernel.lengthscale = torch.ones(d)

    def gpytorch_product() -> torch.Tensor:
        with torch.no_grad():
            return peer(X).evaluate_kernel().to_dense() @ V + 0.01 * V

    def gpytorch_recorded() -> torch.Tensor:
        return (peer(X).evaluate_kernel().to_dense() @ V + 0.01 * V).detach()

    compiled = torch.compile(matern) if arguments.compile else matern
    rough, rough_V = dense._tiles.K.bfloat16(), V.bfloat16()
    compiling = seconds(lambda: chunked(compiled, X, V))
    exact = KernelOperator(kernel, X.double(), 0.1, Compute("streamed")) @ V.double()
    L = torch.randn(n, s, generator=generator)

    def gradient() -> None:
        streamed.bilinear(L, V).backward()

    ways = {
        "streamed": lambda: streamed @ V,
        "dense": lambda: dense @ V,
        "plain matrix product": lambda: plain @ V,
        "GPyTorch evaluation and product": gpytorch_product,
        "GPyTorch, recorded for gradients": gpytorch_recorded,
        "bilinear with gradient": gradient,
        "row chunks, torch.compile": lambda: chunked(compiled, X, V),
        "row chunks": lambda: chunked(matern, X, V),
        "dense, bfloat16": lambda: (rough @ rough_V).float() + 0.01 * V,
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for action in ways.values():
        action()
    for _ in range(arguments.runs):
        for name, action in ways.items():
            times[name].append(seconds(action))
    medians = {name: statistics.median(values) for name, values in times.items()}
    rows = [
        {
            "way": name,
            "seconds": medians[name],
            "G entries/s": n * n / medians[name] / 1e9,
            "error": float((action() - exact).norm() / exact.norm())
            if name not in ("plain matrix product", "GPyTorch, recorded for gradients", "bilinear with gradient")
            else None,
        }
        for name, action in ways.items()
    ]
    ratios = {
        "streamed over GPyTorch": medians["GPyTorch evaluation and product"] / medians["streamed"],
        "streamed over GPyTorch, recorded for gradients": medians["GPyTorch, recorded for gradients"]
        / medians["streamed"],
        "dense over plain product": medians["dense"] / medians["plain matrix product"],
        "gradient over streamed product": medians["bilinear with gradient"] / medians["streamed"],
    }
    print(table(rows))
    for name, value in ratios.items():
        print(f"{name}: {value:.2f}")
    print(f"compiling row chunks: {compiling:.1f} s")
    rough_sets = [roughness(name) for name in UCI[:4]]
    print(table(rough_sets))
    print("written to", write("matvec", rows, n=n, d=d, s=s, ratios=ratios, compiling=compiling, bfloat16=rough_sets))


if __name__ == "__main__":
    main()
