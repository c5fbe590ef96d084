"""The table: every solver meets every operator, in both precisions, with few and many right-hand sides.

A new solver or operator joins by a line in ``SOLVERS`` or ``OPERATORS`` and gets the whole battery. Preconditioners of
grids meet grids only; primal SGD needs random features of the whole matrix, which a grid with holes does not have.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from pathgp import Compute, kernels, operators, solvers
from reference import matern, squared_exponential, system

N = 120
LENGTHSCALE = torch.tensor([0.4, 0.6])
SIGNAL = 0.8
TOL = 1e-2
Solved = tuple[solvers.Solution, list[solvers.Record]]


@dataclass(frozen=True)
class SolverCase:
    solver: solvers.Solver
    # Generous, but few enough to notice when a solver becomes slow.
    max_epochs: float
    # Whether TOL is within reach: primal SGD hardly moves along the small eigenvalues of K, and fixed blocks
    # take hundreds of epochs.
    converges: bool = True
    # The operators it meets, by name.
    suits: Callable[[str], bool] = lambda operator: "smooth" not in operator


SOLVERS: dict[str, SolverCase] = {
    "cholesky": SolverCase(solvers.Cholesky(), 30),
    "cg": SolverCase(solvers.CG(), 10, suits=lambda operator: True),
    "cg-plain": SolverCase(solvers.CG(preconditioner=None), 40),
    # Its own iterations fill the holes: with noise per cell they take more epochs than a small grid is worth.
    "cg-grid-inverse": SolverCase(
        solvers.CG(solvers.GridInverse()), 40, suits=lambda operator: operator in ("grid", "grid with a smooth side")
    ),
    "cg-grid-blocks": SolverCase(solvers.CG(solvers.GridBlocks()), 20, suits=lambda operator: "smooth" in operator),
    "cg-pivoted": SolverCase(solvers.CG(solvers.PivotedCholesky(10)), 15),
    "cg-vecchia": SolverCase(solvers.CG(solvers.Vecchia()), 15, suits=lambda operator: "grid" not in operator),
    "ap": SolverCase(solvers.AP(block_size=60), 15),
    "ap-greedy": SolverCase(solvers.AP(block_size=60, selection="greedy"), 12, converges=False),
    "sdd": SolverCase(solvers.SDD(batch_size=64), 120),
    "sgd": SolverCase(solvers.SGD(batch_size=64), 15, converges=False, suits=lambda operator: "grid" not in operator),
    "auto": SolverCase(solvers.Auto(), 30, suits=lambda operator: True),
}


def _inputs(dtype: torch.dtype) -> Tensor:
    return torch.rand(N, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)


def _kernel_operator(dtype: torch.dtype, backend: str, noise: float | Tensor) -> operators.Operator:
    kernel = kernels.Scale(kernels.Matern(1.5, LENGTHSCALE), SIGNAL)
    # The smallest budget that Cholesky accepts cuts H into three by three tiles or more.
    return operators.KernelOperator(kernel, _inputs(dtype), noise, Compute(backend=backend, memory=16 * N**2))


def _shared_operator(dtype: torch.dtype, backend: str, noise: float | Tensor) -> operators.Operator:
    kernel, group = kernels.Scale(kernels.Matern(1.5, LENGTHSCALE), SIGNAL), operators.Devices(["cpu", "cpu"])
    return operators.KernelOperator(
        kernel, _inputs(dtype), noise, Compute(backend=backend, memory=16 * N**2, group=group)
    )


def _dense(dtype: torch.dtype, noise: float | Tensor) -> Tensor:
    return system(lambda A, Z: SIGNAL**2 * matern(A, Z, 1.5, LENGTHSCALE), _inputs(dtype), noise)


def _observed(sizes: tuple[int, int]) -> Tensor:
    """N cells of a grid."""
    order = torch.randperm(sizes[0] * sizes[1], generator=torch.Generator().manual_seed(3))
    return (order < N).view(sizes)


def _sides(sizes: tuple[int, int], dtype: torch.dtype) -> list[Tensor]:
    generator, widths = torch.Generator().manual_seed(0), (2, 1 if sizes == SMOOTH else 2)
    sides = zip(sizes, widths, strict=True)
    return [torch.rand(p, d, generator=generator, dtype=torch.float64).to(dtype) for p, d in sides]


def _grid_operator(dtype: torch.dtype, sizes: tuple[int, int], noise: float | Tensor) -> operators.Operator:
    first = kernels.Scale(kernels.Matern(1.5, LENGTHSCALE), SIGNAL)
    second = kernels.SquaredExponential(0.7) if sizes == SMOOTH else kernels.Matern(1.5, 0.7)
    compute = Compute(memory=None if sizes == SMOOTH else 16 * N**2)
    return operators.LatentKroneckerOperator(
        [first, second], _sides(sizes, dtype), _observed(sizes), noise, compute=compute
    )


def _grid_dense(dtype: torch.dtype, sizes: tuple[int, int], noise: float | Tensor) -> Tensor:
    F, G = _sides(sizes, dtype)
    scale = torch.tensor(0.7, dtype=torch.float64)
    second = squared_exponential(G, G, scale) if sizes == SMOOTH else matern(G, G, 1.5, scale)
    K = torch.kron(SIGNAL**2 * matern(F, F, 1.5, LENGTHSCALE), second)
    cells = _observed(sizes).flatten()
    return K[cells][:, cells] + torch.diag(torch.as_tensor(noise, dtype=torch.float64).square().expand(N))


SCALAR = 0.4
PER_POINT = torch.linspace(0.3, 0.6, N, dtype=torch.float64)
COMPLETE, HOLES, SMOOTH = (12, 10), (15, 14), (6, 40)


@dataclass(frozen=True)
class OperatorCase:
    """An operator, and the same matrix in dense float64, both of the inputs rounded to a dtype.

    error: what products may be off by beside rounding, relative to the entries.
    """

    build: Callable[[torch.dtype], operators.Operator]
    dense: Callable[[torch.dtype], Tensor]
    error: float = 0.0


OPERATORS: dict[str, OperatorCase] = {
    "dense": OperatorCase(lambda dtype: _kernel_operator(dtype, "dense", SCALAR), lambda dtype: _dense(dtype, SCALAR)),
    "dense, noise per point": OperatorCase(
        lambda dtype: _kernel_operator(dtype, "dense", PER_POINT), lambda dtype: _dense(dtype, PER_POINT)
    ),
    "streamed, noise per point": OperatorCase(
        lambda dtype: _kernel_operator(dtype, "streamed", PER_POINT), lambda dtype: _dense(dtype, PER_POINT)
    ),
    "shared out, noise per point": OperatorCase(
        lambda dtype: _shared_operator(dtype, "streamed", PER_POINT), lambda dtype: _dense(dtype, PER_POINT)
    ),
    "grid": OperatorCase(
        lambda dtype: _grid_operator(dtype, COMPLETE, SCALAR), lambda dtype: _grid_dense(dtype, COMPLETE, SCALAR)
    ),
    "grid with holes, noise per cell": OperatorCase(
        lambda dtype: _grid_operator(dtype, HOLES, PER_POINT), lambda dtype: _grid_dense(dtype, HOLES, PER_POINT)
    ),
    # Products go through a root of the smooth side.
    "grid with a smooth side": OperatorCase(
        lambda dtype: _grid_operator(dtype, SMOOTH, SCALAR), lambda dtype: _grid_dense(dtype, SMOOTH, SCALAR), 1e-12
    ),
}


@dataclass(frozen=True)
class Problem:
    """H x = B + Sigma delta with its dense float64 twin; the last of several columns is zero."""

    H: operators.Operator
    dense: Tensor
    B: Tensor
    delta: Tensor
    error: float = 0.0

    @property
    def target(self) -> Tensor:
        noise = self.H.noise.unsqueeze(1) if self.H.noise.ndim else self.H.noise
        return self.B.double() + noise * self.delta.double()

    def residual(self, x: Tensor) -> Tensor:
        """Relative residuals from the dense float64 matrix; zero for a zero column."""
        norms = self.target.norm(dim=0)
        return (self.target - self.dense @ x.double()).norm(dim=0) / torch.where(norms > 0, norms, 1.0)

    def rounding(self, x: Tensor) -> Tensor:
        """How far a residual computed in the operator's precision may be off."""
        norms = self.target.norm(dim=0)
        size = (self.dense.abs() @ x.double().abs() + self.target.abs()).norm(dim=0)
        return (20 * torch.finfo(self.H.dtype).eps + self.error) * size / torch.where(norms > 0, norms, 1.0)

    def truth(self) -> Tensor:
        return torch.linalg.solve(self.dense, self.target)


@cache
def make_problem(operator: str, dtype: torch.dtype, s: int) -> Problem:
    H, dense = OPERATORS[operator].build(dtype), OPERATORS[operator].dense(dtype)
    generator = torch.Generator().manual_seed(1)
    f = torch.linalg.cholesky(dense) @ torch.randn(N, s, generator=generator, dtype=torch.float64)
    delta = torch.randn(N, s, generator=generator, dtype=torch.float64)
    # As in a posterior: the first column has no noise in delta.
    delta[:, 0] = 0.0
    if s > 1:
        f[:, -1] = delta[:, -1] = 0.0
    return Problem(H, dense, f.to(dtype), delta.to(dtype), OPERATORS[operator].error)


PAIRS = [(solver, operator) for solver, case in SOLVERS.items() for operator in OPERATORS if case.suits(operator)]


@cache
def solve_once(case: SolverCase, problem_key: tuple[str, torch.dtype, int]) -> Solved:
    problem, seen = make_problem(*problem_key), list[solvers.Record]()
    solution = case.solver.solve(
        problem.H,
        problem.B,
        delta=problem.delta,
        tol=TOL,
        max_epochs=case.max_epochs,
        generator=torch.Generator().manual_seed(2),
        callback=seen.append,
    )
    return solution, seen
