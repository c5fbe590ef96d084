"""What devices do per second: the tables behind predicted costs."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Rates:
    """Work of a device per second, accurate to a factor of about two.

    multiply, multiply64: operations of a matrix product, in the dtype of the system and in float64.
    factorise: operations of a Cholesky factorisation in float64.  read: bytes.
    evaluate: entries of a kernel matrix, or of a Kronecker product that is assembled entry by entry.
    fused: entries that are evaluated and multiplied with 65 columns in one pass, or written to memory; twice as many
    for few columns; 0 if fused products are not available.
    latency: seconds that even a small factorisation takes.
    fourier: operations of fast Fourier transforms, 2.5 m log2(m) for m real numbers.
    gather: numbers that are added to, or read from, places of a grid.
    small_products: operations of many products of small tiles.
    evaluate_small: entries of small tiles of a stationary kernel, less a polynomial.
    """

    multiply: float
    multiply64: float
    factorise: float
    read: float
    evaluate: float
    fused: float
    latency: float
    fourier: float
    gather: float
    small_products: float
    evaluate_small: float

    def evaluation(self, backend: str) -> float:
        """Entries per second of blocks and columns of K; infinite if K is kept."""
        return {"dense": math.inf, "fused": self.fused}.get(backend, self.evaluate)


# Measured on an NVIDIA H200 in float32.
H200 = Rates(40e12, 40e12, 20e12, 3e12, 0.04e12, 0.41e12, 2e-3, 2e12, 0.2e12, 4e12, 0.02e12)


def rates(device: torch.device, dtype: torch.dtype) -> Rates:
    """Rates of a device: a CPU by its threads, a GPU by its rate in float64."""
    single = dtype == torch.float32
    if device.type == "cpu":
        t = torch.get_num_threads()
        multiply, fourier, small = (80e9, 8e9, 25e9) if single else (40e9, 4e9, 12e9)
        return Rates(
            multiply=multiply * t,
            multiply64=40e9 * t,
            factorise=40e9 * t,
            read=8e9 * t,
            evaluate=0.125e9 * t,
            fused=0.0,
            latency=3e-4,
            fourier=fourier * t,
            gather=1.5e9 * t,
            small_products=small * t,
            evaluate_small=0.2e9 * t if single else 0.1e9 * t,
        )
    if full_rate_float64(device):
        return H200
    multiply = 20e12 if single else 0.5e12
    return Rates(multiply, 0.5e12, 0.4e12, 0.5e12, 0.004e12, 0.1e12, 2e-3, 0.3e12, 0.05e12, 1e12, 0.002e12)


def full_rate_float64(device: torch.device) -> bool:
    """Whether a device multiplies in float64 at half the rate of float32 or more: CPUs, and GPUs for data centres."""
    return device.type == "cpu" or (
        device.type == "cuda" and torch.cuda.get_device_capability(device) in ((8, 0), (9, 0), (10, 0))
    )
