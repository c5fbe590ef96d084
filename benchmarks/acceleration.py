"""Does Nesterov acceleration help alternating projections? Shuffled blocks with and without it.

    python benchmarks/acceleration.py [SET ...]

Accelerated block Gauss-Seidel (Tu et al. 2017) on fresh random partitions, for several strengths of the momentum,
against plain shuffled blocks of the same size: epochs and seconds to an average residual of 0.01 (y, 64 prior draws),
residual checks counted for neither.
"""

from __future__ import annotations

import argparse
import math
from typing import Any

import torch
from data import UCI, system, uci
from recording import device_name, seconds, table, write
from torch import Tensor

from pathgp.operators import KernelOperator
from pathgp.randomness import permutation
from pathgp.solvers.ap import automatic_block_size
from pathgp.solvers.cholesky import factorise


def sweep_until(H: KernelOperator, B: Tensor, strength: float | None, limit: int = 60) -> tuple[int, float]:
    """Sweeps until the rule is met, and the measure reached; ``strength=None`` is plain shuffled AP.

    With y, z the two sequences of the accelerated method and p = n / b blocks:
        x = (y + tau z) / (1 + tau);  d = H_II^-1 (b - H x)_I;  y = x + d;  z += tau (x - z) + (tau / mu) d
    where mu = strength / p, nu = p, tau = sqrt(mu / nu).
    """
    n = B.shape[0]
    blocks = math.ceil(n / min(n, automatic_block_size(H, B.shape[1])))
    generator = torch.Generator().manual_seed(1)
    norms = torch.linalg.vector_norm(B, dim=0)
    y, z = torch.zeros_like(B), torch.zeros_like(B)
    mu = 1.0 if strength is None else strength / blocks
    tau = 0.0 if strength is None else math.sqrt(mu / blocks)
    value = math.inf
    for sweep in range(1, limit + 1):
        for index in permutation(n, generator, B.device).tensor_split(blocks):
            x = y if strength is None else (y + tau * z) / (1.0 + tau)
            factor, _ = factorise(H.block(index).to(torch.float64))
            r = B[index] - H.rows(index, x)
            d = torch.cholesky_solve(r.to(torch.float64), factor).to(B.dtype)
            y = x.index_add(0, index, d) if strength is not None else y.index_add_(0, index, d)
            if strength is not None:
                z = z + tau * (x - z)
                z.index_add_(0, index, d, alpha=tau / mu)
        residual = torch.linalg.vector_norm(B - H @ y, dim=0) / norms
        value = max(float(residual[0]), float(residual[1:].mean()))
        if value <= 0.01 or not math.isfinite(value):
            return sweep, value
    return limit, value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sets", nargs="*", default=None)
    parser.add_argument("--strengths", nargs="*", type=float, default=[0.02, 0.05, 0.1, 0.2, 0.5])
    arguments = parser.parse_args()
    device = device_name()
    rows: list[dict[str, Any]] = []
    for name in arguments.sets or list(UCI if device == "cuda" else UCI[:3]):
        data = uci(name, device=device)
        H, B = system(data)
        for strength in [None, *arguments.strengths]:
            found: list[tuple[int, float]] = []
            with torch.no_grad():
                taken = seconds(
                    lambda H=H, B=B, strength=strength, found=found: found.append(sweep_until(H, B, strength))
                )
            label = "plain" if strength is None else f"accelerated, mu p = {strength}"
            rows.append({"set": name, "way": label, "sweeps": found[0][0], "residual": found[0][1], "seconds": taken})
            print(table(rows[-1:]).splitlines()[-1], flush=True)
    print("\n" + table(rows))
    print("written to", write(f"acceleration_{device}", rows))


if __name__ == "__main__":
    main()
