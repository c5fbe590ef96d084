"""A preconditioner for complete circles of longitudes: the inverse of H, frequency by frequency."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from pathgp.compute.hardware import Rates
from pathgp.compute.memory import spans
from pathgp.compute.threads import run_separately
from pathgp.operators.base import Operator, Preconditioner, Solve, SolveInProgress
from pathgp.operators.toeplitz.product import ToeplitzProduct, gather, multiply, transform

# Entries of the matrices that a GPU factorises at once, in float64; a thread of a CPU factorises one matrix at a time.
_AT_ONCE_GPU = 2**27
# Added to the diagonal of a matrix that is not positive definite because of rounding, relative to its largest entry.
_JITTER = 1e-7
# Factor of the jitter from one attempt to the next.
_JITTER_GROWTH = 10.0
# Largest number of attempts.
_ATTEMPTS = 6


@dataclass(frozen=True)
class FrequencyInverse(Preconditioner):
    """H^-1 for kernels of longitude differences, if every parallel has one row at every longitude of the circle.

        H^-1 = F^-1 diag_f((K_f + sigma^2)^-1) F

    F is the Fourier transform in longitude, see `ToeplitzProduct`. If all rows have the same noise, this is exact, and
    conjugate gradients only correct rounding errors. Noise that differs between rows is replaced by its mean. Cholesky
    factors are computed in float64, and their inverses are stored in the dtype of H: the product of such an inverse and
    its transpose remains positive definite after rounding.

    Time O(N p^3) for N longitudes and p parallels; an application takes twice the time of a product. Memory as for K.
    """

    product: ToeplitzProduct = field(repr=False, compare=False)

    label = "by frequencies"
    epochs = 3.0

    def build(self, run: SolveInProgress) -> tuple[Solve, str]:
        product, layout = self.product, self.product.layout
        G = _invert_factors(product.blocks, float(run.H.noise.mean()))

        def apply(R: Tensor) -> Tensor:
            run.epochs += self.apply_cost(run.H)
            result = torch.empty_like(R)
            for columns in product.batches(R):
                spectrum = transform(layout, R[:, columns])
                multiply(G, spectrum)
                multiply(G.mT, spectrum)
                result[:, columns] = gather(layout, spectrum)
            return result

        return apply, f"inverse by frequencies: {layout.times} longitudes, {len(layout.sites)} parallels"

    def apply_cost(self, H: Operator) -> float:
        return 2.0

    def predict_seconds(self, H: Operator, s: int, epochs: float, product: float, rates: Rates) -> float:
        """Seconds of a factorisation and a triangular inverse for every frequency, and of all products."""
        frequencies, p = self.product.blocks.shape[:2]
        return frequencies * (p**3 * 4 / 3 / rates.factorise + rates.latency / 4) + epochs * product


def _invert_factors(K: Tensor, noise: float) -> Tensor:
    """G (f, p, p) with G_f^T G_f = (K_f + noise)^-1, lower triangular, in the dtype of K."""
    p, device = K.shape[1], K.device
    G = torch.empty_like(K)
    identity = torch.eye(p, dtype=torch.float64, device=device)
    at_once = 1 if device.type == "cpu" else max(1, _AT_ONCE_GPU // p**2)

    def invert(part: slice) -> None:
        A = K[part].to(torch.float64, copy=True)
        A.diagonal(dim1=1, dim2=2).add_(noise)
        G[part] = torch.linalg.solve_triangular(_factorise(A), identity, upper=False).to(K.dtype)

    run_separately(list(spans(len(K), at_once)), invert, device)
    return G


def _factorise(A: Tensor) -> Tensor:
    """Lower Cholesky factors of A (f, p, p), to which jitter is added in place where rounding requires it."""
    jitter = _JITTER * A.diagonal(dim1=1, dim2=2).amax(1, keepdim=True)
    for _ in range(_ATTEMPTS):
        L, info = torch.linalg.cholesky_ex(A)
        if not bool(info.any()):
            break
        A.diagonal(dim1=1, dim2=2).add_(jitter * (info > 0).unsqueeze(1))
        jitter = _JITTER_GROWTH * jitter
    return L
