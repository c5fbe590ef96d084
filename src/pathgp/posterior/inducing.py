"""The posterior of a sparse method: mean, variance, covariance and paths through m inducing points.

    mean  = mu + K(., Z) v,                          v = L^-T E[u]
    path_j = mu + f_j + K(., Z) (v - alpha_j),       alpha_j = L^-T (L^-1 f_j(Z) - R w_j),    R R^T = Var(u)

with u the whitened inducing values of `pathgp.sparse.family`, f_j a draw of the prior and w_j standard normal. The
paths have the covariance of the method exactly, K_** - v^T v + v^T Var(u) v with v = L^-1 K_Z* (Wilson et al. 2020).

Without the factor of Var(u), by CG or SGD, the update is that of the thesis (section 3.2.3),

    (K_ZZ + K_ZX Sigma^-1 K_XZ) [v, alpha_j] = K_ZX Sigma^-1 [y - mu, f_j(X) + eps_j],

with f_j(X) in place of its Nystrom part K_XZ K_ZZ^-1 f_j(Z): for C = (K_ZZ + K_ZX Sigma^-1 K_XZ)^-1 K_ZX Sigma^-1 the
covariance of the paths is K_** - K_*Z C K_X* - K_*X C^T K_Z* + K_*Z C (K + Sigma) C^T K_Z*.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from pathgp.compute.inputs import Array
from pathgp.compute.memory import spans
from pathgp.compute.random import normal
from pathgp.compute.recompute import recompute_blocks
from pathgp.data.rows import Rows
from pathgp.kernels import Kernel
from pathgp.pathwise import PriorPaths, ZeroPaths
from pathgp.posterior.conditioning import SolveRequest
from pathgp.posterior.evidence import Evidence
from pathgp.posterior.leave_one_out import LeaveOneOut
from pathgp.posterior.report import ConditionReport
from pathgp.posterior.system import System
from pathgp.posterior.table import Posterior
from pathgp.solvers import CG, Solution, Solver, Status
from pathgp.solvers.cholesky import factorise
from pathgp.solvers.run import column_norms
from pathgp.sparse.descent import InducingSGD
from pathgp.sparse.operator import InducingOperator, right_hand_sides
from pathgp.sparse.problem import Problem, root_of
from pathgp.sparse.statistics import Sums, accumulate

# Test rows whose covariances with the inducing points are computed at once.
_ROWS_AT_ONCE = 1024
# Passes over the data of stochastic gradient descent, unless max_epochs is given; tolerance of CG in units of ``tol``.
_DESCENT_EPOCHS, _CG_TOL = 100.0, 1e-4
# Bytes per entry of a covariance (q, q), and of K(Z, Xs) (m, q) with its temporaries, float64.
_BYTES_PER_COVARIANCE, _BYTES_PER_CROSS = 32, 64


@dataclass(eq=False, repr=False)
class InducingPosterior(Posterior):
    """A sparse Gaussian process conditioned on a table of rows. Returned by `InducingGP.condition`.

    The methods are those of `Posterior`. All computations are in float64. Variances, covariances and joint draws are
    those of the sparse method, which the report names; so are the paths.

    Further attributes: ``factor``, the Cholesky factor of B (m, m), or None after an iterative solve; ``sums`` over
    the rows; ``data``, the rows, or None if they were not saved.
    """

    factor: Tensor | None = None
    sums: Sums | None = None
    data: Rows | None = None

    @classmethod
    def solve_directly(cls, model: Any, data: Rows, prior: Any, request: SolveRequest) -> InducingPosterior:
        """One pass over the data and two Cholesky factors: the last step of conditioning and of fits."""
        problem = model.problem(data, request.settings.compute)
        root, jitter = problem.root()
        B, sums = accumulate(problem, root)
        return _from_statistics(model, problem, (root, jitter), B, sums, prior, request)

    @classmethod
    def solve_iteratively(
        cls, model: Any, data: Rows, prior: Any, request: SolveRequest, by_descent: bool
    ) -> InducingPosterior:
        """By stochastic gradient descent, or by preconditioned conjugate gradients: memory O(m s) and one block."""
        settings, generator = request.settings, request.generator
        problem = model.problem(data, settings.compute)
        H, sides = InducingOperator(problem), right_hand_sides(problem, prior, generator)
        solver: Solver = InducingSGD(prior, sides.noise)
        tol, max_epochs = settings.tol, settings.max_epochs
        if by_descent:
            max_epochs = max_epochs or _DESCENT_EPOCHS
        else:
            solver = settings.solver if isinstance(settings.solver, CG) else CG()
            # Residuals are weighted by K_ZX: small ones remain where the mean is far off.
            tol = _CG_TOL * settings.tol
        limits: dict[str, Any] = {"tol": tol, "max_epochs": max_epochs, "time_limit": request.seconds_left}
        solution = solver.solve(H, sides.whole, generator=generator, callback=request.callback, **limits)
        report = make_report(model, problem, replace(solution, x=solution.x[:0]), math.nan, prior, request)
        report = replace(report, tol=tol)
        return cls(
            model,
            data.scaling,
            _system(problem),
            prior,
            solution.x,
            settings,
            report,
            factor=None,
            sums=None,
            data=data,
        )

    @property
    def X(self) -> Tensor:
        """The inputs of the data (n, d), in the units of the caller."""
        return self._require_data("X").X_raw

    @property
    def Z(self) -> Tensor:
        """The inducing points (m, d), in the units of the caller, float64."""
        return self.scaling.restore_inputs(self.system.X)

    def training_inputs(self, rows: Tensor) -> Tensor:
        data = self._require_data("the training inputs")
        return data.X_raw[rows].to(torch.float64)

    def training_targets(self) -> Tensor:
        return self._require_data("the training targets").y

    @property
    def has_targets(self) -> bool:
        return self.data is not None

    def log_marginal_likelihood(self, probes: int = 32, generator: torch.Generator | None = None) -> Evidence:
        """Return the objective of the method in the units of y, without error: ``probes`` has no effect.

        log N(y | mu, Q + Lambda) for sor, dtc, fitc and pitc. For sgpr, svgp and sgd the lower bound of log p(y | X).
        ValueError after an iterative solve, which does not know it.
        """
        if self.factor is None or self.sums is None:
            raise ValueError("log_marginal_likelihood needs the direct solution: use solver='cholesky'")
        kind = "lower bound" if self.model.family.is_bound else "evidence"
        value = self.scaling.restore_log_density(self.sums.objective(self.factor), self.sums.rows)
        return Evidence(value, 0.0, f"{kind} of {self.model.method}, m = {len(self.system.X)}", 0.0)

    def leave_one_out(self) -> LeaveOneOut:
        """ValueError: a sparse method does not give the exact predictions of left-out rows."""
        raise ValueError("leave_one_out is not available with inducing points: predict held-out rows instead")

    def _extend(self, X_new: Tensor, y_new: Tensor, noise: Array | None, request: SolveRequest) -> InducingPosterior:
        """One pass over the new rows, whose sums are added to those of the old ones; O(m^3). With pitc the new rows are
        blocks of their own. The callback is not used. ValueError after an iterative solve.
        """
        if self.factor is None or self.sums is None:
            raise ValueError("update needs the direct solution: use solver='cholesky', or condition on all rows again")
        data = Rows.of(X_new.detach().clone(), y_new, noise, self.scaling)
        problem = self.model.problem(data, self.settings.compute)
        root = self._root
        B, sums = accumulate(problem, root[0])
        B = B + self.factor @ self.factor.T
        B.diagonal().sub_(1.0)
        grown = replace(problem, data=self.data.join(data)) if self.data is not None else problem
        result = _from_statistics(self.model, grown, root, B, sums + self.sums, self.prior, request)
        result.data = grown.data if self.data is not None else None
        report = replace(result.report, rows=self.sums.rows + len(y_new), inducing=self.report.inducing)
        result.report = report
        return result

    def _choose_method(self, method: str | None) -> str:
        if self.factor is not None:
            if method in (None, "smooth", "solve"):
                return "solve"
            raise ValueError(f"variances of {self.model.method} come from a factor: leave method={method!r} out")
        if method in (None, "smooth", "samples"):
            return "samples"
        raise ValueError(f"after an iterative solve variances come from samples, got method={method!r}")

    def _variance(self, Xs: Tensor, method: str | None, part: Kernel | None = None, terms: Any = None) -> Tensor:
        if self._choose_method(method) == "solve":
            return self._exact.variance(Xs, part)
        prior, update = self._require_paths(), self._update(self.weights[:, 1:], part)
        parts = [(prior(Xs[rows], terms) - update(Xs[rows])).square().mean(0) for rows in spans(len(Xs), _ROWS_AT_ONCE)]
        return torch.cat(parts) if parts else Xs.new_empty(0)

    @property
    def _root(self) -> tuple[Tensor, float]:
        """L with L L^T = K_ZZ + jitter, and the jitter."""
        with torch.no_grad():
            return root_of(self.model.kernel(self.system.X))

    @cached_property
    def _exact(self) -> Any:
        if self.factor is None:
            raise ValueError(
                "covariances and joint draws need the direct solution: use solver='cholesky', or paths and variance"
            )
        budget = self.settings.compute.budget(self.system.X.device)
        root, low_rank = self._root[0], self.model.family.is_low_rank
        return SparseCovariance(self.model.kernel, self.system.X, root, self.factor, low_rank, budget)

    @property
    def has_factor(self) -> bool:
        return self.factor is not None

    def _require_data(self, what: str) -> Rows:
        if self.data is None:
            raise ValueError(f"{what} were not saved: use save(data=True)")
        return self.data


@dataclass(frozen=True)
class SparseCovariance:
    """K_** - v^T v + v^T B^-1 v with v = L^-1 K_Z*, or v^T B^-1 v for a prior of low rank; float64.

    Z: (m, d).  root: L.  factor: Cholesky factor of B.  memory: budget in bytes. Time O(q m^2) for q test inputs.
    """

    kernel: Kernel
    Z: Tensor
    root: Tensor
    factor: Tensor
    is_low_rank: bool
    memory: int

    def variance(self, Xs: Tensor, part: Kernel | None = None) -> Tensor:
        """The diagonal (q,), of f or of the function of a summand ``part`` of the kernel; differentiable in Xs."""
        kernel = self.kernel if part is None else part
        rows = min(_ROWS_AT_ONCE, max(1, self.memory // (4 * _BYTES_PER_CROSS * len(self.Z))))
        return recompute_blocks(lambda block: self._diagonal(block, kernel), Xs, rows)

    def covariance(self, Xs: Tensor) -> Tensor:
        """The matrix (q, q), symmetric; ValueError if it does not fit the memory budget."""
        q, m = len(Xs), len(self.Z)
        if (needed := _BYTES_PER_COVARIANCE * q**2 + _BYTES_PER_CROSS * m * q) > self.memory:
            raise ValueError(
                f"the covariance of {q:,} inputs needs {needed / 1e9:,.1f} GB, and the memory budget is "
                f"{self.memory / 1e9:,.1f} GB: ask for fewer inputs at once, raise Compute(memory=...), or use variance"
            )
        v, spread = self._whiten(Xs, self.kernel)
        explained = spread.T @ spread
        covariance = explained if self.is_low_rank else self.kernel(Xs) - v.T @ v + explained
        return 0.5 * (covariance + covariance.T)

    def _diagonal(self, Xs: Tensor, kernel: Kernel) -> Tensor:
        v, spread = self._whiten(Xs, kernel)
        left = spread.square().sum(0)
        return left if self.is_low_rank else (kernel.diag(Xs) - v.square().sum(0)).clamp_min(0.0) + left

    def _whiten(self, Xs: Tensor, kernel: Kernel) -> tuple[Tensor, Tensor]:
        """v = L^-1 K(Z, Xs) and R^-1 v (m, q) with R R^T = B."""
        v = torch.linalg.solve_triangular(self.root, kernel(self.Z, Xs), upper=False)
        return v, torch.linalg.solve_triangular(self.factor, v, upper=False)


def _from_statistics(
    model: Any,
    problem: Problem,
    root: tuple[Tensor, float],
    B: Tensor,
    sums: Sums,
    prior: PriorPaths | ZeroPaths | None,
    request: SolveRequest,
) -> InducingPosterior:
    """Weights of mean and paths from the sums over the data, and the report."""
    L, jitter = root
    factor, _ = factorise(B.clone())
    centre = torch.cholesky_solve(sums.c.unsqueeze(1), factor)
    lower = B.tril()
    residual = sums.c.unsqueeze(1) - (lower + lower.tril(-1).T) @ centre
    white = centre
    if prior is not None:
        draws = normal((len(L), prior.samples), request.generator, torch.float64, L.device)
        spread = torch.linalg.solve_triangular(factor.T, draws, upper=True)
        at_points = torch.linalg.solve_triangular(L, prior(problem.Z).T, upper=False)
        white = torch.cat([centre, at_points - spread], 1)
    weights = torch.linalg.solve_triangular(L.T, white, upper=True)
    size = float(column_norms(sums.c))
    relative = float(column_norms(residual[:, 0])) / size if size else 0.0
    solution = Solution(
        x=weights[:0],
        residual=torch.full((weights.shape[1],), relative, dtype=torch.float64),
        residual_is_exact=True,
        iterations=1,
        epochs=1.0,
        status=Status.CONVERGED,
        history=[],
        solver=f"Cholesky of I + L^-1 K_ZX Λ^-1 K_XZ L^-T, {len(L):,} rows",
        note=f"jitter {jitter:.0e} on the diagonal of K_ZZ",
        seconds=time.perf_counter() - request.began,
        method="Cholesky",
        precision="high",
    )
    report = make_report(model, problem, solution, float(column_norms(residual[:, 0])), prior, request)
    system = _system(problem)
    scaling, settings = problem.data.scaling, request.settings
    return InducingPosterior(
        model, scaling, system, prior, weights, settings, report, factor=factor, sums=sums, data=problem.data
    )


def make_report(
    model: Any, problem: Problem, solution: Solution, residual: float, prior: Any, request: SolveRequest
) -> ConditionReport:
    """The report in the units of y. ``residual``: norm of the residual of the mean in whitened coordinates.

    B^-1 <= I, so that the error of the mean is at most sqrt(k(x, x)) times this norm, relative to the exact solution of
    the sparse method. What the method itself approximates is in words.
    """
    data, Z = problem.data, problem.Z
    largest = model.largest_variance(data)
    bound = data.scaling.restore_deviation(math.sqrt(largest) * residual)
    paths = ""
    if prior is not None:
        exact = solution.method == "Cholesky"
        paths = (
            "; paths: exact for this method"
            if exact
            else "; paths: f(X) in place of its Nyström part K_XZ K_ZZ^-1 f(Z)"
        )
    return ConditionReport(
        rows=len(data.y),
        columns=Z.shape[1],
        samples=0 if prior is None else prior.samples,
        features=0 if prior is None else prior.num_features,
        backend=f"blocks of {min(problem.block_rows, len(data.y)):,} rows of K(X, Z)",
        precision="float64",
        device=str(Z.device),
        tol=request.settings.tol,
        solution=solution,
        error_bound=bound,
        sample_error_bound=bound,
        resolution=bound,
        relative_resolution=math.sqrt(largest) * residual / float(model.noise.detach()),
        seconds=time.perf_counter() - request.began,
        seed=request.seed,
        no_paths=request.no_paths,
        inducing=model.origin,
        approximation=f"{model.method}: {model.family.approximation}{paths}",
    )


def _system(problem: Problem) -> System:
    """The inducing points, where `Posterior` expects the inputs of its weights; without right-hand sides."""
    Z = problem.Z.detach()
    empty = Z.new_empty(len(Z), 0)
    return System(Z, empty, empty, problem.deviation().detach())
