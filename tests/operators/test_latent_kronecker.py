"""A grid with holes: task factors, roots of smooth factors, costs, errors. Products: tests/conformance."""

from __future__ import annotations

import math
from functools import reduce

import pytest
import torch
from torch import Tensor

from pathgp import Compute, kernels
from pathgp.kernels import Kernel, Matern, Scale
from pathgp.operators import LatentKroneckerOperator
from pathgp.operators.grid_base import multiply_sides

S = 3
SIZES = {1: (20,), 2: (9, 7), 3: (5, 4, 3)}
COLUMNS = (2, 1, 1)


def sides(k: int) -> list[Kernel]:
    """Rough, smooth and composed; the square root of Matern-1/2 at zero shows any rounding of a distance."""
    return [
        Scale(Matern(1.5, torch.tensor([0.3, 0.5], dtype=torch.float64)), 1.3),
        Matern(0.5, 0.7),
        kernels.Periodic(0.7, 1.1) * kernels.RationalQuadratic(0.9, 0.6),
    ][:k]


def inputs(k: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    pairs = zip(SIZES[k], COLUMNS, strict=False)
    return [torch.rand(p, d, generator=generator, dtype=torch.float64).to(dtype) for p, d in pairs]


def mask(k: int, missing: float) -> Tensor:
    """True in the cells that are observed."""
    cells = math.prod(SIZES[k])
    order = torch.randperm(cells, generator=torch.Generator().manual_seed(1))
    return (order >= round(missing * cells)).view(SIZES[k])


def twin(parts: list[Kernel], factors: list[Tensor], observed: Tensor, noise: Tensor) -> Tensor:
    """P (K_1 x ... x K_k) P^T + diag(noise^2), differentiable."""
    K = reduce(torch.kron, [kernel(F.double()) for kernel, F in zip(parts, factors, strict=True)])
    cells = observed.flatten()
    return K[cells][:, cells] + torch.diag(noise.square().expand(int(cells.sum())))


def vectors(rows: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(rows, S, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def test_a_task_kernel_as_a_factor() -> None:
    parts: list[Kernel] = [Matern(1.5, 0.4), kernels.Task(3, rank=2)]
    factors = [inputs(2)[0], torch.arange(3, dtype=torch.float64).unsqueeze(1)]
    observed = mask(2, 0.3)[:, :3]
    n = int(observed.sum())
    L, R = vectors(n, 2), vectors(n, 3)
    value = LatentKroneckerOperator(parts, factors, observed, 0.3).bilinear(L, R)
    expected = (L * (twin(parts, factors, observed, torch.tensor(0.3, dtype=torch.float64)) @ R)).sum()
    parameters = [p for kernel in parts for p in kernel.parameters()]
    for a, b in zip(torch.autograd.grad(value, parameters), torch.autograd.grad(expected, parameters), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def test_a_frozen_parameter_gets_no_gradient() -> None:
    parts, observed = sides(2), mask(2, 0.3)
    parts[0].requires_grad_(False)
    V = vectors(int(observed.sum()), 2)
    LatentKroneckerOperator(parts, inputs(2), observed).bilinear(V, V).backward()
    assert all(p.grad is None for p in parts[0].parameters())
    assert all(p.grad is not None for p in parts[1].parameters())


def test_costs() -> None:
    """An epoch is p (p_1 + ... + p_k) multiplications a column; a row costs n, as in a dense matrix."""
    H = LatentKroneckerOperator(sides(2), inputs(2), mask(2, 0.3))
    assert H.shape[0] == 44
    assert H.entries == 63 * 16
    assert H.cost() == 1.0
    assert H.cost(3) == pytest.approx(3 * 44 / (63 * 16))
    assert H.cost(44) == 1.0
    assert repr(H) == "LatentKroneckerOperator(n=44 of 9 x 7, torch.float64, cpu)"


def test_scatter_gather_and_the_whole_grid() -> None:
    H = LatentKroneckerOperator(sides(3), inputs(3), mask(3, 0.3))
    V = vectors(H.shape[0], 2)
    grid = H.scatter(V)
    assert grid.shape == (*SIZES[3], S)
    assert bool((grid[~mask(3, 0.3)] == 0).all())
    assert torch.equal(H.gather(grid), V)
    with torch.no_grad():
        factors = [kernel(F) for kernel, F in zip(sides(3), inputs(3), strict=True)]
    torch.testing.assert_close(H.multiply(grid), torch.einsum("ai,bj,ck,ijks->abcs", *factors, grid))
    tall = torch.ones(2, SIZES[3][1], dtype=torch.float64)
    torch.testing.assert_close(multiply_sides([None, tall, None], grid), torch.einsum("bj,ijks->ibks", tall, grid))


@pytest.mark.parametrize("k", SIZES)
def test_eigendecompositions_of_the_factors(k: int) -> None:
    """Also of a singular factor: two rows alike."""
    factors = inputs(k)
    factors[0][1] = factors[0][0]
    H = LatentKroneckerOperator(sides(k), factors, mask(k, 0.3))
    for (values, vectors_), kernel, F in zip(H.basis, sides(k), factors, strict=True):
        assert bool((values >= 0).all())
        with torch.no_grad():
            torch.testing.assert_close(vectors_ * values @ vectors_.T, kernel(F))


def test_integer_factors_become_float64() -> None:
    H = LatentKroneckerOperator(sides(1), [torch.arange(12).view(6, 2)], torch.ones(6, dtype=torch.bool))
    assert H.dtype == torch.float64
    assert (H @ torch.ones(6, 1, dtype=torch.float64)).dtype == torch.float64


def test_errors_say_what_to_do() -> None:
    parts, factors, observed = sides(2), inputs(2), mask(2, 0.3)
    with pytest.raises(ValueError, match="2 kernels and 1 factors: one kernel per side"):
        LatentKroneckerOperator(parts, factors[:1], observed)
    with pytest.raises(ValueError, match="0 kernels"):
        LatentKroneckerOperator([], [], observed)
    with pytest.raises(TypeError, match="pathgp kernel"):
        LatentKroneckerOperator([parts[0], "matern"], factors, observed)  # type: ignore[list-item]
    with pytest.raises(ValueError, match=r"boolean grid of shape \(9, 7\), got \(7, 9\)"):
        LatentKroneckerOperator(parts, factors, observed.T)
    with pytest.raises(ValueError, match="boolean grid"):
        LatentKroneckerOperator(parts, factors, observed.double())
    with pytest.raises(ValueError, match="no cell of the grid is observed"):
        LatentKroneckerOperator(parts, factors, torch.zeros(9, 7, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"one per row \(44,\)"):
        LatentKroneckerOperator(parts, factors, observed, torch.ones(63))
    with pytest.raises(ValueError, match="not negative"):
        LatentKroneckerOperator(parts, factors, observed, -0.1)
    with pytest.raises(ValueError, match="must be positive"):
        LatentKroneckerOperator(parts, factors, observed, compute=Compute(memory=0))
    with pytest.raises(TypeError, match="one dtype on one device"):
        LatentKroneckerOperator(parts, [factors[0], factors[1].float()], observed)
    H = LatentKroneckerOperator(parts, factors, observed)
    with pytest.raises(NotImplementedError, match="no random features for primal SGD: use CG"):
        H.features(10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("smooth", [(0,), (1,), (0, 1)], ids=str)
def test_smooth_factors_go_through_their_roots(smooth: tuple[int, ...], dtype: torch.dtype) -> None:
    """Products and gradients are those of the dense matrix, with fewer multiplications."""
    generator, sizes = torch.Generator().manual_seed(0), (60, 2, 40)
    factors = [torch.rand(p, 1, generator=generator, dtype=torch.float64).to(dtype) for p in sizes]
    at = {0: 0, 1: 2}
    parts: list[kernels.Kernel] = [
        kernels.Scale(kernels.Matern(0.5, 0.7), 1.3),
        kernels.Matern(1.5, 0.6),
        kernels.Matern(0.5, 0.5),
    ]
    for i in smooth:
        parts[at[i]] = kernels.SquaredExponential(0.4 + 0.1 * i)
    observed = torch.rand(sizes, generator=generator) < 0.6
    H = LatentKroneckerOperator(parts, factors, observed, 0.3)
    assert [B is not None for B in H.roots] == [i in smooth for i in (0, None, 1)]
    assert all(rank <= 20 for rank, B in zip(H.ranks, H.roots, strict=True) if B is not None)
    assert H.entries < 0.75 * observed.numel() * sum(sizes)
    n = H.shape[0]
    V, R = (torch.randn(n, 3, generator=generator, dtype=torch.float64).to(dtype) for _ in range(2))
    places = [place[observed.flatten()] for place in torch.unravel_index(torch.arange(observed.numel()), sizes)]
    matrices = [kernel(F.to(torch.float64)) for kernel, F in zip(parts, factors, strict=True)]
    blocks = [matrix[place][:, place] for matrix, place in zip(matrices, places, strict=True)]
    dense = reduce(torch.mul, blocks) + 0.09 * torch.eye(n, dtype=torch.float64)
    expected = (dense @ V.to(torch.float64)).detach()
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    assert float((H @ V - expected).norm()) < tolerance * float(expected.norm())
    learned = [parameter for kernel in parts for parameter in kernel.parameters()]
    forms = (V.to(torch.float64) * (dense @ R.to(torch.float64))).sum()
    found = H.bilinear(V, R)
    scale = float(V.norm() * R.norm())
    assert abs(float((found - forms).detach())) < tolerance * scale
    for one, other in zip(torch.autograd.grad(found, learned), torch.autograd.grad(forms, learned), strict=True):
        assert float((one - other).abs().max()) < 10 * tolerance * scale


def test_a_root_of_a_short_side_pays_up_to_three_quarters() -> None:
    """18 columns of 52 beside a side of 2,000 are worth a root, and not beside a side of 10."""
    times = (torch.arange(1, 53).log() / math.log(53.0)).unsqueeze(1)
    for places, expected in ((2000, 18), (10, 52)):
        factors = [torch.rand(places, 2, generator=torch.Generator().manual_seed(0)), times]
        parts = [kernels.Matern(0.5, 0.1), kernels.SquaredExponential(0.108)]
        assert LatentKroneckerOperator(parts, factors, torch.ones(places, 52, dtype=torch.bool)).ranks[1] == expected
