"""Kernels, means and solves in plain words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor

from pathgp.html.numbers import number
from pathgp.kernels import (
    Kernel,
    Linear,
    Matern,
    Periodic,
    Product,
    RationalQuadratic,
    Scale,
    SquaredExponential,
    Sum,
    Tanimoto,
    Task,
)
from pathgp.kernels.expression import Columns, fold
from pathgp.kernels.stationary import Stationary

_MOST_NAMES = 6
_HALVES = {0.5: "1/2", 1.5: "3/2", 2.5: "5/2"}
_SMOOTH = {
    0.5: "continuous but rough functions",
    1.5: "functions with one derivative",
    2.5: "functions with two derivatives",
}


def listed(words: Sequence[str], most: int = _MOST_NAMES) -> str:
    """One, two and three; of many the first ones.

    >>> listed(["a", "b", "c"]), listed(["a", "b", "c", "d"], most=2)
    ('a, b and c', 'a, b and 2 more')
    """
    shown = list(words)
    if len(shown) > most:
        shown = [*shown[:most], f"{len(words) - most} more"]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def kernel_in_words(kernel: Kernel, names: Sequence[str]) -> str:
    """What the prior says about the function; ``names`` of the columns that the kernel sees."""

    def visit(node: Kernel, seen: Columns, parts: Iterator[str]) -> str:
        if isinstance(node, Scale):
            return f"{next(parts)}, standard deviation {number(float(node.signal.detach()))}"
        if isinstance(node, (Sum, Product)):
            return ("a sum of " if isinstance(node, Sum) else "a product of ") + "; and ".join(parts)
        where = "" if node.active_dims is None else f" of {listed(seen or ())}"
        return f"{_leaf(node)}{where}{_scales(node)}"

    return fold(kernel, visit, names)


def _leaf(kernel: Kernel) -> str:
    if isinstance(kernel, Matern):
        smooth = _SMOOTH.get(kernel.nu, "")
        return f"Matérn {_HALVES.get(kernel.nu, f'{kernel.nu:g}')} kernel" + (f" ({smooth})" if smooth else "")
    if isinstance(kernel, SquaredExponential):
        return "squared exponential kernel (very smooth functions)"
    if isinstance(kernel, RationalQuadratic):
        return f"rational quadratic kernel (mixed length scales, α = {number(float(kernel.alpha.detach()))})"
    if isinstance(kernel, Periodic):
        return f"periodic kernel (period {_range(kernel.period)})"
    if isinstance(kernel, Linear):
        return "linear kernel (straight lines)" + ("" if kernel.bias is None else " with an intercept")
    if isinstance(kernel, Task):
        return f"kernel over {kernel.num_tasks} related tasks"
    if isinstance(kernel, Tanimoto):
        return "Tanimoto kernel (similarity of counts)"
    return repr(kernel)


def _scales(kernel: Kernel) -> str:
    if not isinstance(kernel, (Stationary, Periodic)):
        return ""
    each = ", one per input" if kernel.lengthscale.numel() > 1 else ""
    plural = "s" if kernel.lengthscale.numel() > 1 else ""
    return f", length scale{plural} {_range(kernel.lengthscale)}{each}"


def _range(value: Tensor) -> str:
    low, high = number(float(value.detach().min())), number(float(value.detach().max()))
    return low if low == high else f"{low} to {high}"
