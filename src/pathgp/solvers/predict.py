"""Predicted seconds of solvers and products, from sizes, backend and the rates of the device; nothing is timed."""

from __future__ import annotations

import math

import torch

from pathgp.compute.hardware import Rates, rates
from pathgp.operators import Operator, Preconditioner
from pathgp.solvers.ap import automatic_block_size
from pathgp.solvers.preconditioners import RandomlyPivotedCholesky

# Epochs from a residual of 1 to one of 0.01, as measured on regression data with learned hyperparameters: AP
# took 4 to 9, CG with a randomly pivoted Cholesky preconditioner 6 to 80. A start near the solution saves all but the
# last few: AP took 3 to 7 in warm-started fits, CG 8 to 18.
EPOCHS_AP, EPOCHS_CG, EPOCHS_LEAST = 6.0, 35.0, 3.0


def predict_cholesky(H: Operator, s: int, r: Rates | None = None) -> float:
    """Evaluate H, n^3 / 3 operations, two substitutions; ``r``: by default the rates of the operator's device."""
    n, r = H.shape[0], r or rates(H.device, H.dtype)
    evaluate = n**2 / r.evaluation(H.backend)
    return evaluate + n**3 / 3 / r.factorise + 2 * n**2 * s / r.multiply64 + predict_product(H, s, r)


def predict_ap(H: Operator, s: int, epochs: float, r: Rates | None = None) -> float:
    """Each epoch: all rows of H, and n / b factorisations of size b, which processes share as wholes."""
    n, r = H.shape[0], r or rates(H.device, H.dtype)
    b = min(n, automatic_block_size(H, s))
    blocks = math.ceil(n / b)
    turns = math.ceil(blocks / H.world_size)
    # Rows use neither the symmetry that a streamed product has, nor the structure of a grid.
    again = {"fused": 0.0, "streamed": n**2 / 2}.get(H.backend, float(n**2)) / H.world_size
    evaluate = (again + n * b * turns / blocks) / r.evaluation(H.backend)
    factorise = b**3 / 3 / r.factorise + 2 * b**2 * s / r.multiply64 + r.latency
    return epochs * (H.cost(b) * blocks * predict_product(H, s, r) + evaluate + turns * factorise)


def predict_cg(
    H: Operator, s: int, epochs: float, r: Rates | None = None, preconditioner: Preconditioner | None = None
) -> float:
    """Build the preconditioner (by default randomly pivoted Cholesky); each epoch a product and an application."""
    r = r or rates(H.device, H.dtype)
    preconditioner = preconditioner or RandomlyPivotedCholesky()
    return preconditioner.predict_seconds(H, s, epochs, predict_product(H, s, r), r)


def predict_product(H: Operator, s: int, r: Rates | None = None) -> float:
    """H V: bound by reading K or by multiplying; a streamed product evaluates half of K and uses it twice."""
    n, r = H.shape[0], r or rates(H.device, H.dtype)
    if H.backend == "fused":
        return n**2 * max(0.5, s / 65) / r.fused / H.world_size
    multiply = 2 * H.entries * s / r.multiply / H.world_size
    if H.backend == "dense":
        return max(multiply, n**2 * (4 if H.dtype == torch.float32 else 8) / r.read / H.world_size)
    return multiply + (n**2 / 2 / r.evaluate / H.world_size if H.backend == "streamed" else 0.0)
