"""Predicted seconds of solvers and products, from sizes, backend and the rates of the device; nothing is timed."""

from __future__ import annotations

import math

import torch

from pathgp.compute.hardware import Rates, rates
from pathgp.operators import Operator, Preconditioner
from pathgp.solvers.ap import automatic_block_size
from pathgp.solvers.preconditioners import RandomlyPivotedCholesky

# Epochs from a residual of 1 to one of 0.01, as measured on regression data with learned hyperparameters: AP
# took 4 to 9, CG for one column with a randomly pivoted Cholesky preconditioner 6 to 80. A start near the solution
# saves all but the last few: AP took 3 to 7 in warm-started fits, CG 8 to 18.
EPOCHS_AP, EPOCHS_CG, EPOCHS_LEAST = 6.0, 35.0, 3.0
# These hold for a noise of a tenth of the signal. They grow with these powers of the ratio of signal to noise.
_POWER_AP, _POWER_CG = 0.2, 0.7
# Columns after which a block of CG takes 0.7 times the iterations of one column. With low-rank preconditioners a block
# of 65 columns took 0.16 to 0.67 times as many on eleven sets of 2,000 rows (benchmarks/results/block_cg_cpu.json), and
# 0.49 to 0.67 times on three sets of 6,000 rows.
_BLOCK_COLUMNS = 32.0
# Largest number of columns of a block of CG, and on a GPU the seconds of an iteration for matrices of their inner
# products, which are decomposed on the CPU. With shorter products CG treats the columns one by one: on an H200 and 65
# columns it took 0.11 s, in blocks 0.14 s, for 20,000 rows; 0.63 and 0.48 s for 50,000.
_LARGEST_BLOCK, _BLOCK_SECONDS = 128, 2.5e-3


def signal_to_noise(H: Operator) -> float:
    """Root of the mean prior variance over the mean noise, at most 1000."""
    noise = float(H.noise.mean())
    signal = max(float(H.diagonal().to(torch.float64).mean()) - noise, 0.0)
    return min(math.sqrt(signal / noise), 1e3) if noise > 0 else 1e3


def typical_epochs(ratio: float, work: float) -> tuple[float, float]:
    """Epochs of AP, and of CG with a low-rank preconditioner, for ``work`` times a reduction of residuals by 100.

    Those of CG are for one column.  ``ratio``: of signal to noise.
    """
    growth_ap, growth_cg = (max(ratio / 10.0, 0.01) ** power for power in (_POWER_AP, _POWER_CG))
    return EPOCHS_LEAST + EPOCHS_AP * work * growth_ap, EPOCHS_LEAST + EPOCHS_CG * work * growth_cg


def automatic_block(H: Operator, s: int, r: Rates | None = None) -> int:
    """The largest number of columns of a block of CG with s columns."""
    is_short = H.device.type == "cuda" and predict_product(H, s, r) < _BLOCK_SECONDS
    return 1 if is_short else _LARGEST_BLOCK


def block_factor(H: Operator, s: int) -> float:
    """Iterations of CG with s columns, in automatic blocks, over those with one column."""
    return 1.0 / math.sqrt(1.0 + min(s, automatic_block(H, s)) / _BLOCK_COLUMNS)


def predict_cholesky(H: Operator, s: int, r: Rates | None = None) -> float:
    """Evaluate H, n^3 / 3 operations, two substitutions; ``r``: by default the rates of the operator's device."""
    n, r = H.shape[0], r or rates(H.device, H.dtype)
    evaluate = n**2 / r.evaluation(H.entry_backend)
    return evaluate + n**3 / 3 / r.factorise + 2 * n**2 * s / r.multiply64 + predict_product(H, s, r)


def predict_ap(H: Operator, s: int, epochs: float, r: Rates | None = None) -> float:
    """Each epoch: all rows of H, and n / b factorisations of size b, which processes share as wholes."""
    n, r = H.shape[0], r or rates(H.device, H.dtype)
    b = min(n, automatic_block_size(H, s))
    blocks = math.ceil(n / b)
    turns = math.ceil(blocks / H.world_size)
    # Rows use neither the symmetry that a streamed product has, nor the structure of a grid. Those of structured
    # products include their evaluation.
    known = {"fused": 0.0, "field": 0.0, "toeplitz": 0.0, "streamed": n**2 / 2}
    again = known.get(H.backend, float(n**2)) / H.world_size
    evaluate = (again + n * b * turns / blocks) / r.evaluation(H.entry_backend)
    if H.backend == "dense":
        # Rows of a kept K are copied before they are multiplied.
        evaluate += 2 * n**2 * H.dtype.itemsize / r.read / H.world_size
    factorise = b**3 / 3 / r.factorise + 2 * b**2 * s / r.multiply64 + r.latency
    if H.entry_backend == "fused":
        # Many blocks are inverted at once, and applied as products. Measured on an H200, 61 blocks of 1,640 rows.
        factorise = b**3 / 3 / r.factorise + 25.0 * 2 * b**2 * s / r.multiply64 + r.latency / 6.0
    return epochs * (H.cost(b) * blocks * predict_product(H, s, r) + evaluate + turns * factorise)


def predict_cg(
    H: Operator, s: int, epochs: float, r: Rates | None = None, preconditioner: Preconditioner | None = None
) -> float:
    """Build the preconditioner (by default randomly pivoted Cholesky); each epoch a product and an application."""
    r = r or rates(H.device, H.dtype)
    preconditioner = preconditioner or RandomlyPivotedCholesky()
    iteration = predict_product(H, s, r)
    if H.device.type == "cuda" and automatic_block(H, s, r) > 1:
        iteration += _BLOCK_SECONDS
    return preconditioner.predict_seconds(H, s, epochs, iteration, r)


def predict_product(H: Operator, s: int, r: Rates | None = None) -> float:
    """H V: bound by reading K or by multiplying; a streamed product evaluates half of K and uses it twice."""
    n, r = H.shape[0], r or rates(H.device, H.dtype)
    known = H.predict_product(s)
    if known is not None:
        return known
    if H.backend == "fused":
        return n**2 * max(0.5, s / 65) / r.fused / H.world_size
    multiply = 2 * H.entries * s / r.multiply / H.world_size
    if H.backend == "dense":
        return max(multiply, n**2 * H.dtype.itemsize / r.read / H.world_size)
    return multiply + (n**2 / 2 / r.evaluate / H.world_size if H.backend == "streamed" else 0.0)
