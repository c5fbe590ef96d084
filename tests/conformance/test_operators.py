"""What every operator promises, against its dense float64 twin.

A new operator joins by a line in ``OPERATORS``. Every operator here is that of a grid: a table is a grid with one side
and without holes, so that one formula gives all twins.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce

import pytest
import torch
from torch import Tensor

from fused_cases import DEVICE, InTurn
from kernel_cases import KERNELS
from pathgp import Compute
from pathgp.kernels import Kernel
from pathgp.operators import KernelOperator, LatentKroneckerOperator, Operator

N = 60


@dataclass(frozen=True)
class Case:
    """An operator of a kind, with the kernels of its sides.

    sides: names of kernels, one per side; the first has two columns.  missing: the share of cells without a value.
    memory: a budget that cuts products into tiles, or makes a grid evaluate its factors anew.
    """

    kind: str
    sides: tuple[str, ...]
    sizes: tuple[int, ...] = (N,)
    missing: float = 0.0
    per_row: bool = False
    memory: int | None = None

    def __str__(self) -> str:
        shape = "x".join(map(str, self.sizes)) + (f", {self.missing:.0%} missing" if self.missing else "")
        noise = "noise per row" if self.per_row else "one noise"
        return f"{self.kind}, {' x '.join(self.sides)}, {shape}, {noise}" + (", small tiles" if self.memory else "")

    @property
    def is_fused(self) -> bool:
        return self.kind.endswith("fused")

    @property
    def is_field(self) -> bool:
        """Whether products have a relative error of 1e-5."""
        return self.kind.endswith("field")

    @property
    def device(self) -> str:
        return DEVICE if self.is_fused else "cpu"

    @property
    def observed(self) -> Tensor:
        cells = math.prod(self.sizes)
        order = torch.randperm(cells, generator=torch.Generator().manual_seed(1))
        return (order >= round(self.missing * cells)).view(self.sizes).to(self.device)

    @property
    def rows(self) -> int:
        return int(self.observed.sum())

    def factors(self, dtype: torch.dtype) -> list[Tensor]:
        generator = torch.Generator().manual_seed(0)
        if self.kind == "alone toeplitz":
            # Ten sites at eight times, of which rows are missing, in random order.
            sites, times = torch.rand(10, 1, generator=generator).double(), 0.15 * torch.arange(8).double()
            cells = torch.cat([sites.repeat(8, 1), times.repeat_interleave(10).unsqueeze(1)], 1)
            return [cells[torch.randperm(80, generator=generator)][: self.sizes[0]].to(dtype)]
        draws = [torch.rand(p, 2 - bool(i), generator=generator).double() for i, p in enumerate(self.sizes)]
        return [F.to(self.device, dtype) for F in draws]

    def deviation(self) -> Tensor:
        noise = torch.linspace(0.1, 0.5, self.rows) if self.per_row else torch.tensor(0.3)
        return noise.to(self.device, torch.float64).requires_grad_()

    def build(self, kernels: Sequence[Kernel], dtype: torch.dtype, noise: Tensor) -> Operator:
        factors, (family, _, backend) = self.factors(dtype), self.kind.partition(" ")
        if family == "grid":
            return LatentKroneckerOperator(kernels, factors, self.observed, noise, Compute(memory=self.memory))
        if family == "alone":
            return KernelOperator(kernels[0], factors[0], noise, Compute(backend, self.memory))
        group = InTurn([self.device] * 3)
        return KernelOperator(kernels[0], factors[0], noise, Compute(backend, self.memory, group=group))

    def twin(self, kernels: Sequence[Kernel], dtype: torch.dtype, noise: Tensor) -> Tensor:
        """P (K_1 x ... x K_k) P^T + diag(noise^2) in float64, differentiable."""
        matrices = [kernel(F.double()) for kernel, F in zip(kernels, self.factors(dtype), strict=True)]
        cells = self.observed.flatten()
        return reduce(torch.kron, matrices)[cells][:, cells] + torch.diag(noise.square().expand(self.rows))


TABLE = ("Matern-3/2", "Matern-1/2", "sum", "product")
SERIES = ("Matern-3/2", "Matern-1/2", "RQ", "product", "Gneiting", "learned Matern")
# Budgets that hold what must be held and otherwise make tiles of a few rows.
TILES = {"dense": 8 * N**2, "streamed": 40_000}
THREE = ("Matern-3/2", "Matern-1/2", "RQ")
GRIDS = {1: (20,), 2: (9, 7), 3: (5, 4, 3)}
STREAMED = {1: 3000, 2: 600, 3: 200}
OPERATORS = [
    *(Case(f"alone {way}", (name,), memory=TILES[way]) for way in TILES for name in TABLE),
    *(Case(f"alone {way}", ("Matern-3/2",), per_row=True, memory=TILES[way]) for way in TILES),
    *(Case(f"alone {way}", ("Matern-3/2",), (n,)) for way in (*TILES, "fused") for n in (1, 2)),
    *(Case("alone fused", (name,), per_row=name == "sum") for name in TABLE),
    *(Case("alone field", (name,), per_row=name == "RQ") for name in ("Matern-3/2", "Matern-1/2", "RQ")),
    *(Case("alone toeplitz", (name,), per_row=name == "RQ") for name in SERIES),
    Case("alone toeplitz", ("product",), (2,)),
    Case("alone toeplitz", ("Matern-3/2",), memory=30_000),
    *(Case(f"shared {way}", ("Matern-3/2",), per_row=True, memory=TILES[way]) for way in TILES),
    *(Case(f"shared {way}", ("sum",), (n,)) for way in TILES for n in (2, N)),
    *(Case("shared fused", ("Matern-3/2",), (n,)) for n in (2, N)),
    *(Case("grid", THREE[:k], GRIDS[k], missing, k == 2) for k in GRIDS for missing in (0.0, 0.3, 0.8)),
    *(Case("grid", THREE[:k], GRIDS[k], 0.3, k != 2, STREAMED[k]) for k in GRIDS),
    Case("grid", ("Matern-3/2", "Matern-1/2"), (1, 1)),
    Case("grid", ("Matern-3/2", "Matern-1/2"), (4, 3), 11 / 12),
]


# Fused products are in float32.
PAIRS = [
    pytest.param((case, dtype), id=f"{case}-{str(dtype).removeprefix('torch.')}")
    for case in OPERATORS
    for dtype in (torch.float32, torch.float64)
    if not (case.is_fused and dtype == torch.float64)
]


@pytest.fixture(params=PAIRS)
def pair(request: pytest.FixtureRequest) -> tuple[Case, torch.dtype]:
    case, dtype = request.param
    if case.is_fused:
        pytest.importorskip("triton", minversion="3.6")
    return case, dtype


@pytest.fixture
def case(pair: tuple[Case, torch.dtype]) -> Case:
    return pair[0]


@pytest.fixture
def dtype(pair: tuple[Case, torch.dtype]) -> torch.dtype:
    return pair[1]


@pytest.fixture
def kernels(case: Case) -> list[Kernel]:
    """The kernels of the sides; the second and third have one column, and no list of length scales."""
    return [KERNELS[name]() for name in case.sides]


def draw(rows: int, columns: int, like: Operator, seed: int = 1) -> Tensor:
    V = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return V.to(like.device, like.dtype)


def indices(H: Operator) -> list[Tensor]:
    """A few rows in any order, a single one, one twice, all of them."""
    n = H.shape[0]
    chosen = [[n - 1, 0, n // 2, n // 3], [n // 2], [0, n - 1, 0], [*range(n)][::-1]]
    return [torch.tensor(index, device=H.device) for index in chosen]


def test_products_and_entries(case: Case, dtype: torch.dtype, kernels: list[Kernel]) -> None:
    noise = case.deviation()
    H, n = case.build(kernels, dtype, noise), case.rows
    dense = case.twin(kernels, dtype, noise).detach()
    close = {"rtol": 0.0, "atol": 1e3 * torch.finfo(dtype).eps}
    assert (H.shape, H.dtype, H.device.type) == ((n, n), dtype, case.device)
    torch.testing.assert_close(H.noise, noise.detach().square())
    torch.testing.assert_close(H.diagonal().double(), dense.diagonal(), **close)
    rows, single, *others = indices(H)
    for columns, chosen in ((1, [rows]), (3, [single, *others])):
        V = draw(n, columns, H)
        off = 3e-5 * float((dense @ V.double()).abs().max()) if case.is_field else close["atol"]
        torch.testing.assert_close((H @ V).double(), dense @ V.double(), rtol=0.0, atol=off)
        for index in chosen:
            D = draw(len(index), columns, H, seed=2)
            torch.testing.assert_close(H.rows(index, V).double(), dense[index] @ V.double(), **close)
            torch.testing.assert_close(H.columns(index, D).double(), dense[:, index] @ D.double(), **close)
    for index in indices(H):
        if len(index.unique()) == len(index):  # the noise of a row that is asked for twice is on the diagonal alone
            torch.testing.assert_close(H.block(index).double(), dense[index][:, index], **close)


def test_bilinear_value_and_all_gradients(case: Case, dtype: torch.dtype, kernels: list[Kernel]) -> None:
    noise = case.deviation()
    H, n = case.build(kernels, dtype, noise), case.rows
    L, R = draw(n, 3, H), draw(n, 3, H, seed=2)
    dense = case.twin(kernels, dtype, noise)
    parameters = [*(p for kernel in kernels for p in kernel.parameters()), noise]
    size = float((L.double().abs() * (dense.detach().abs() @ R.double().abs())).sum())
    is_exact = dtype == torch.float64 and not case.is_field
    close = {"rtol": 1e-9, "atol": 1e-9} if is_exact else {"rtol": 1e-4, "atol": 1e-5 * size}
    factors = torch.linspace(-1.0, 2.0, 3, device=H.device).to(dtype)
    for left, symmetric in ((L, False), (R * factors, False), (R * factors, True)):
        value = H.bilinear(left, R, symmetric=symmetric)
        expected = (left.double() * (dense @ R.double())).sum()
        torch.testing.assert_close(value.double(), expected, **close)
        found = torch.autograd.grad(3 * value, parameters)
        wanted = torch.autograd.grad(3 * expected, parameters, retain_graph=True)
        for a, b in zip(found, wanted, strict=True):
            torch.testing.assert_close(a, b, **close)


def test_an_operator_is_a_snapshot_and_products_carry_no_graph(
    case: Case, dtype: torch.dtype, kernels: list[Kernel]
) -> None:
    noise = case.deviation()
    H, index = case.build(kernels, dtype, noise), torch.arange(0, case.rows, 7, device=case.device)
    V = draw(case.rows, 2, H)

    def products() -> list[Tensor]:
        return [H @ V, H.rows(index, V), H.columns(index, V[index]), H.block(index), H.diagonal()]

    before = products()
    assert not any(product.requires_grad for product in before)
    with torch.no_grad():
        for parameter in [p for kernel in kernels for p in kernel.parameters()]:
            parameter.add_(1.0)
        noise.mul_(3.0)
    assert all(torch.equal(a, b) for a, b in zip(products(), before, strict=True))


def test_costs(case: Case, dtype: torch.dtype, kernels: list[Kernel]) -> None:
    """One epoch is one product; rows of a table cost their share, of a grid no more than a product, of structured
    products more."""
    H = case.build(kernels, dtype, case.deviation())
    costs = [H.cost(rows) for rows in range(1, case.rows + 1)]
    assert H.cost() == 1.0
    assert costs == sorted(costs)
    assert 0.0 < costs[0] <= costs[-1]
    is_structured = case.is_field or case.kind.endswith("toeplitz")
    if not is_structured:
        assert costs[-1] <= 1.0
    if case.kind != "grid" and not is_structured:
        assert costs == pytest.approx([(i + 1) / case.rows for i in range(case.rows)])
    assert H.entries > 0


@pytest.mark.parametrize("near", [False, True])
def test_partitions(case: Case, dtype: torch.dtype, kernels: list[Kernel], near: bool) -> None:
    """Every row once, parts of equal size, rows in ascending order; the same generator, the same parts."""
    H = case.build(kernels, dtype, case.deviation())
    for parts in {1, min(3, case.rows), case.rows}:
        found, again = (H.partition(parts, torch.Generator().manual_seed(0), near) for _ in range(2))
        assert len(found) == parts
        assert max(map(len, found)) - min(map(len, found)) <= 1
        assert torch.equal(torch.cat(found).sort().values.cpu(), torch.arange(case.rows))
        assert all(bool((part.diff() > 0).all()) for part in found)
        assert all(torch.equal(a, b) for a, b in zip(found, again, strict=True))


def test_blocks_are_solved_in_turn(case: Case, dtype: torch.dtype, kernels: list[Kernel]) -> None:
    noise = case.deviation()
    H = case.build(kernels, dtype, noise)
    parts = H.partition(min(2, case.rows), torch.Generator().manual_seed(0))
    dense = case.twin(kernels, dtype, noise).detach()

    def invert(blocks: Tensor) -> list[Callable[[Tensor], Tensor]]:
        return [lambda R, block=block: torch.linalg.solve(block.double(), R.double()).to(R) for block in blocks]

    inverses = H.block_inverses(parts, invert)
    for part, inverse in zip(parts, inverses, strict=True):
        R = draw(len(part), 2, H)
        tolerance = 1e-9 if dtype == torch.float64 else 1e-3
        torch.testing.assert_close(
            inverse(R).double(), torch.linalg.solve(dense[part][:, part], R.double()), rtol=tolerance, atol=tolerance
        )


def test_wrong_shapes_and_dtypes_are_refused(case: Case, dtype: torch.dtype, kernels: list[Kernel]) -> None:
    H, n = case.build(kernels, dtype, case.deviation()), case.rows
    other = torch.float64 if dtype == torch.float32 else torch.float32
    V, index = draw(n, 1, H), torch.zeros(1, dtype=torch.long, device=H.device)
    for bad in (V[:, 0], draw(n + 1, 1, H)):
        with pytest.raises(ValueError, match=rf"V must have shape \({n}, s\)"):
            H @ bad
        with pytest.raises(ValueError, match=rf"V must have shape \({n}, s\)"):
            H.rows(index, bad)
    with pytest.raises(ValueError, match=r"D must have shape \(1, s\)"):
        H.columns(index, draw(2, 1, H))
    with pytest.raises(TypeError, match="convert V"):
        H @ V.to(other)
    for L, R, name in ((V.to(other), V, "L"), (V, V.to(other), "R")):
        with pytest.raises(TypeError, match=f"convert {name}"):
            H.bilinear(L, R)
