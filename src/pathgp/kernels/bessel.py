"""a^mu K_mu(a) as a function of a^2, with derivatives of every order; K_mu: modified Bessel function."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import gammaln, kve
from torch import Tensor


class _Bessel(torch.autograd.Function):
    """g_mu(q) = e^c a^mu K_mu(a), a = sqrt(q), with dg_mu/dq = -g_{mu-1} / 2, for any real order mu.

    The recursion makes every derivative another value of the same function.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, order: float, log_factor: float) -> Tensor:
        ctx.save_for_backward(q)
        ctx.order, ctx.log_factor = order, log_factor
        return torch.from_numpy(evaluate_bessel(q.detach().cpu().double().numpy(), order, log_factor)).to(q)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (q,) = ctx.saved_tensors
        return -0.5 * grads[0] * scaled_bessel(q, ctx.order - 1.0, ctx.log_factor), None, None


def scaled_bessel(q: Tensor, order: float, log_factor: float) -> Tensor:
    """exp(log_factor) a^order K_order(a), a = sqrt(q), elementwise; evaluated by SciPy in float64 on the CPU.

    Orders mu <= 0 are singular at q = 0: the value there is zero by convention.
    """
    result: Tensor = _Bessel.apply(q, order, log_factor)
    return result


def evaluate_bessel(q: NDArray[np.float64], order: float, log_factor: float) -> NDArray[np.float64]:
    """The same for arrays, without gradients."""
    a = np.sqrt(q)
    # In logarithms, because a^mu underflows and K_mu overflows long before their product does.
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        value = np.exp(log_factor + order * np.log(a) + np.log(kve(abs(order), a)) - a)
    if order <= 0:
        return np.where(a == 0, 0.0, value)
    # K_mu overflows only where the first two terms of the series are exact in float64.
    correction = 1.0 - q / (4.0 * (order - 1.0)) if order > 1 else 1.0
    limit = np.exp(log_factor + (order - 1.0) * np.log(2.0) + gammaln(order)) * correction
    return np.where(np.isfinite(value), value, limit)
