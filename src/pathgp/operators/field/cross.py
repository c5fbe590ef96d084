"""K(X, Z) V for predictions at many inputs, by the same grid as products with K."""

from __future__ import annotations

import torch
from torch import Tensor

from pathgp.compute.hardware import rates
from pathgp.kernels import Kernel
from pathgp.kernels.blocks import stationary_columns
from pathgp.operators.field.near import Blocks
from pathgp.operators.field.plan import Plan, nodes_of, plan_products, unsuitable
from pathgp.operators.field.product import FieldProduct
from pathgp.operators.field.split import Split
from pathgp.operators.structured import predict_exact_rows

# Relative error of the grid, and of the spectrum; the second is tightened if the result is off by more than this part
# of its root mean square. Representer weights cancel: the result is much smaller than its terms.
_ACCURACY, _SPECTRAL, _TOLERANCE = 1e-5, (1e-9, 1e-11), 3e-4
# From this number of entries of K(X, Z) on, if that is predicted to take less than this part of the time.
_LEAST_ENTRIES, _MUCH_LESS = 2**26, 0.5
# Rows of the result that are compared with exact ones.
_MEASURED_ROWS = 64


@torch.no_grad()
def field_cross(kernel: Kernel, X: Tensor, Z: Tensor, V: Tensor, memory: int, backend: str) -> Tensor | None:
    """K(X, Z) V, (m, s), or None if an exact product is faster, or if the error on some rows is too large.

    ``backend``: of the exact product, "streamed" or "fused".
    """
    m, n, s = len(X), len(Z), V.shape[1]
    if m * n < _LEAST_ENTRIES or min(s, X.shape[1]) == 0 or unsuitable(kernel, Z):
        return None
    exact = predict_exact_rows(m, s, backend, Z)
    nodes = nodes_of(X, [Z])
    if nodes is None and stationary_columns(kernel, X.shape[1]) is None:
        return None
    blocks = None if nodes is not None else (Blocks(X.to(torch.float64)), Blocks(Z.to(torch.float64)))
    index = torch.linspace(0, m - 1, min(m, _MEASURED_ROWS), device=X.device).long()
    wanted = None
    for spectral in _SPECTRAL:
        if blocks is None:
            assert nodes is not None
            fits = nodes.column_bytes(X.dtype) <= memory / 4
            plan = Plan(nodes, Split(_ACCURACY, spectral, X.shape[1]), 0.0, m + n, False) if fits else None
        else:
            plan = plan_products(kernel, *blocks, _ACCURACY, spectral, memory, X.dtype)
        if plan is None or plan.seconds(s, rates(X.device, X.dtype), memory, X.element_size()) > _MUCH_LESS * exact:
            return None
        product = FieldProduct(kernel, plan, X, Z, blocks, memory)
        result = product.product(V, V.new_zeros(m, s))
        if wanted is None:
            wanted = _exact_rows(kernel, X[index], Z, V)
        if float((result[index] - wanted).norm()) <= _TOLERANCE * float(wanted.norm()):
            return result
    return None


def _exact_rows(kernel: Kernel, X: Tensor, Z: Tensor, V: Tensor) -> Tensor:
    """K(X, Z) V for few rows, in parts of Z."""
    result = V.new_zeros(len(X), V.shape[1])
    for part in range(0, len(Z), 2**18):
        result += kernel(X, Z[part : part + 2**18]) @ V[part : part + 2**18]
    return result
