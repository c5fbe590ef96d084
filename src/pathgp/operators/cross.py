"""Products with a rectangular kernel matrix, K(X, Z) V, in tiles, for predictions."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pathgp.compute import triton
from pathgp.compute.memory import halve_on_failure, memory_budget, tile_edge, tiles
from pathgp.compute.stacklevel import levels_to_the_caller
from pathgp.compute.threads import run_in_order
from pathgp.kernels import Kernel
from pathgp.kernels.sphere import Embedding
from pathgp.operators.field.cross import field_cross
from pathgp.operators.fused import fallback_reason, fused_cross, fused_cross_gradient
from pathgp.operators.fused.expression import Expression
from pathgp.operators.toeplitz.cross import toeplitz_cross


class _CrossProduct(torch.autograd.Function):
    """K(X, Z) V with the gradient in X by re-evaluating each tile: memory O(tile) in both directions."""

    @staticmethod
    def forward(
        ctx: Any,
        kernel: Kernel,
        X: Tensor,
        Z: Tensor,
        V: Tensor,
        memory: int,
        fused: bool,
        structured: Sequence[str],
        given: tuple[Kernel, Tensor, Tensor],
    ) -> Tensor:
        ctx.save_for_backward(X, Z, V)
        ctx.kernel, ctx.memory, ctx.fused = kernel, memory, fused
        exact = "fused" if fused else "streamed"
        fast = toeplitz_cross(*given, V, memory, exact) if "toeplitz" in structured else None
        if fast is None and "field" in structured:
            fast = field_cross(kernel, X, Z, V, memory, exact)
        if fast is not None:
            return fast
        if fused:
            return fused_cross(kernel, X, Z, V)

        # As in `Streamed`, vectors are rows.
        V = V.T.contiguous()

        def compute(edge: int) -> Tensor:
            result = V.new_zeros(len(V), len(X))
            run_in_order(
                tiles(len(X), len(Z), edge, X.device),
                lambda task: V[:, task[1]] @ kernel(X[task[0]], Z[task[1]]).T,
                lambda task, part: result[:, task[0]].add_(part),
                X.device,
            )
            return result

        result, _ = halve_on_failure(compute, tile_edge(memory, X.dtype, X.device))
        return result.T.contiguous()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        X, Z, V = ctx.saved_tensors
        outer = grads[0]
        # With create_graph the tiles' graphs are kept as well, and second derivatives come out right.
        twice = torch.is_grad_enabled()
        if ctx.fused and not twice and Expression(ctx.kernel, X.shape[1]).differentiable:
            return None, fused_cross_gradient(ctx.kernel, X, Z, V, outer), *[None] * 6

        def differentiate(task: tuple[slice, slice]) -> Tensor:
            I, J = task
            with torch.enable_grad():
                inputs = X[I] if twice else X[I].detach().requires_grad_()
                tile = ctx.kernel(inputs, Z[J])
            return torch.autograd.grad(tile, inputs, outer[I] @ V[J].T, create_graph=twice)[0]

        def compute(edge: int) -> Tensor:
            parts: dict[int, Tensor] = {}

            def add(task: tuple[slice, slice], grad: Tensor) -> None:
                first = task[0].start
                parts[first] = parts[first] + grad if first in parts else grad

            run_in_order(tiles(len(X), len(Z), edge, X.device), differentiate, add, X.device)
            return torch.cat(list(parts.values())) if parts else torch.zeros_like(X)

        grad_X, _ = halve_on_failure(compute, max(1, tile_edge(ctx.memory, X.dtype, X.device) // 2))
        return None, grad_X, *[None] * 6


def cross_product(
    kernel: Kernel, X: Tensor, Z: Tensor, V: Tensor, memory: float | None = None, backend: str = "auto"
) -> Tensor:
    """K(X, Z) V: (m, s) for X (m, d), Z (n, d), V (n, s); differentiable in X.

    Time O(m n (d + s)); memory one tile for every thread plus the output, also in the backward pass. ``backend``:
    "streamed", "fused" or "auto", as for `KernelOperator`, with a warning if only X prevents fused products; second
    derivatives, and gradients of Tanimoto kernels, are always streamed. "exact": "auto" without field products, which
    take O((m + n) log(m + n)) for stationary kernels in up to three dimensions, with an error below 3e-4 of the root
    mean square of the result, as measured on 64 rows. If X and Z together are sites x regular times, "auto" and "exact"
    use Toeplitz products, exact up to rounding, where they take less time. Gradients are exact.
    """
    if backend not in ("auto", "streamed", "fused", "exact"):
        raise ValueError(f"backend must be 'auto', 'exact', 'streamed' or 'fused', got {backend!r}")
    embedding = Embedding(kernel, Z.shape[1])
    given = kernel, X.detach(), Z
    kernel, X, Z = embedding.kernel, embedding(X), embedding(Z, "Z")
    wanted = backend == "fused" or (backend in ("auto", "exact") and triton.preferred(X.device))
    problem = fallback_reason(kernel, X.detach(), Z) if wanted else "not asked for"
    if backend == "fused" and problem:
        raise ValueError(f"{problem}: use backend='auto'")
    if wanted and problem and not fallback_reason(kernel, Z):
        warnings.warn(
            f"no fused products at these inputs, slower ones instead: {problem}", stacklevel=levels_to_the_caller()
        )
    fused = not problem and min(X.shape[0], *V.shape) > 0
    structured = {"auto": ("toeplitz", "field"), "exact": ("toeplitz",)}.get(backend, ())
    result: Tensor = _CrossProduct.apply(kernel, X, Z, V, memory_budget(memory, X.device), fused, structured, given)
    return result
