"""The Vecchia preconditioner: a sparse factor of H^-1 from the nearest rows of every row."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from pathgp.compute.hardware import Rates
from pathgp.compute.memory import spans
from pathgp.compute.neighbours import earlier_neighbours
from pathgp.compute.random import permutation
from pathgp.operators import Operator, Preconditioner
from pathgp.operators.base import Solve, SolveInProgress

# Numbers of neighbours that a rehearsal tries. It stops at the first that takes this number of iterations to a residual
# of 0.01. On 4,000 to 10,000 rows CG took 1.0 to 2.4 times the iterations of the rehearsal.
NEIGHBOURS, _FEW_ITERATIONS, _ITERATIONS = (15, 30, 60, 120), 3, 1.6
# Rows of a rehearsal, the number of places it looks at, its columns, and iterations that are too many.
_ROWS, _PLACES, _COLUMNS, _MAX_ITERATIONS = 512, 2, 4, 60
# Bytes per entry of U: U and its transpose, the neighbours, and the sort that transposes.
_BYTES_PER_ENTRY = 48
# The small systems that are solved together: bytes per entry (differences of inputs, values, factors), and the largest
# number of entries. On a CPU they stay in the cache.
_BYTES_PER_SMALL, _AT_ONCE = 96, {"cpu": 2**20}
_AT_ONCE_GPU = 2**26
# Added to the diagonal of the small systems, relative to it: equal rows without noise would make them singular.
_RIDGE = 1e-12
# Measured on a CPU: small systems are factorised at this part of the rate of a large one, and their entries evaluated
# at this part of the rate of a tile of K; seconds of a thread per neighbour found. On a GPU, pairs of rows whose
# distances are compared, relative to entries of K.
_FACTORISE_PART, _EVALUATE_PART, _SECONDS_PER_NEIGHBOUR, _PAIRS_PART = 0.04, 0.35, 5e-7, 2.0
# Seconds of a GPU per neighbour found by cells, in up to this number of columns.
_SECONDS_PER_NEIGHBOUR_GPU, _CELL_COLUMNS = 1e-8, 3


@dataclass(frozen=True)
class Vecchia(Preconditioner):
    """H^-1 ~ U U^T with a sparse U, for inputs of up to three or four columns.

    The rows are in random order. Column i of U belongs to row i and the m nearest rows before it, distances in length
    scales. On these rows S it is

        u_i = x / sqrt(x_i),    H[S, S] x = e_i

    With m = n - 1 this is H^-1 exactly. Applying it takes two sparse products and no triangular solve.

    ``neighbours``: m, at most n - 1. None: the first of 15, 30, 60 and 120 with which CG takes three iterations to a
    residual of 0.01 on the rows around two random ones, or else the best of these. More noise relative to the distance
    of neighbours, and more columns, need more neighbours. From five columns on other preconditioners need fewer
    iterations.

    Time O(n m^3), n m^2 entries of K, and O(n m log n) for the neighbours; O(n m s) per
    application. Memory 48 n (m + 1) bytes. All in float64. Vecchia (1988), Schaefer, Katzfuss and Owhadi (2021).
    """

    label = "with Vecchia's preconditioner"

    neighbours: int | None = None

    def __post_init__(self) -> None:
        is_count = isinstance(self.neighbours, int) and not isinstance(self.neighbours, bool) and self.neighbours >= 1
        if self.neighbours is not None and not is_count:
            raise ValueError(f"neighbours must be an integer of at least 1, or None, got {self.neighbours!r}")

    def build(self, run: SolveInProgress) -> tuple[Solve, str]:
        H, m = run.H, self._largest(run.H)
        predicted = ""
        if self.neighbours is None:
            iterations = rehearse_neighbours(H, run.b, run.generator, neighbours_to_try(H))
            m = min(iterations, key=lambda m: iterations[m])
            predicted = f", about {iterations[m]:.0f} iterations predicted"
            run.epochs += cost_of_rehearsal(H)
        coordinates = _coordinates(H)
        order = permutation(H.shape[0], run.generator, H.device)
        factor = InverseFactor(*_columns(coordinates, H.small_blocks, order, m, H.memory))
        run.epochs += _build_cost(H, m)
        return factor, f"Vecchia with {m} neighbours{predicted}"

    def cost(self, H: Operator) -> float:
        return _build_cost(H, self._largest(H)) + (cost_of_rehearsal(H) if self.neighbours is None else 0.0)

    def predict_seconds(self, H: Operator, s: int, epochs: float, product: float, rates: Rates) -> float:
        """Neighbours, small systems and their entries; per epoch two products with U, bound by reading."""
        n, b = H.shape[0], self._largest(H) + 1
        near = n**2 / (_PAIRS_PART * rates.evaluate)
        if H.device.type != "cpu" and (H.stationary_dim or math.inf) <= _CELL_COLUMNS:
            near = n * b * _SECONDS_PER_NEIGHBOUR_GPU + 20 * rates.latency
        elif H.device.type == "cpu":
            near = n * b * _SECONDS_PER_NEIGHBOUR / torch.get_num_threads()
        application = 16 * n * b * s / rates.read + rates.latency / 4
        return near + _predict_systems(n, b, rates) + epochs * (product + application)

    def _largest(self, H: Operator) -> int:
        """The number of neighbours, or the largest that may be chosen."""
        if self.neighbours is None:
            return neighbours_to_try(H)[-1]
        m = min(self.neighbours, H.shape[0] - 1)
        if (required := _BYTES_PER_ENTRY * H.shape[0] * (m + 1)) > H.memory:
            raise ValueError(
                f"Vecchia({self.neighbours}) needs {required / 1e9:.3g} GB, the budget is {H.memory / 1e9:.3g} GB: "
                "use fewer neighbours or raise memory="
            )
        return m


class InverseFactor:
    """R -> U U^T R for columns of U with the same number of entries: their rows (n, m + 1) and values (n, m + 1)."""

    def __init__(self, index: Tensor, values: Tensor) -> None:
        n, width = index.shape
        flat, values = index.flatten(), values.flatten()
        starts = torch.arange(0, n * width + 1, width, device=index.device)
        by_row = flat.argsort(stable=True)
        starts_by_row = pad(torch.bincount(flat, minlength=n).cumsum(0), (1, 0))
        self._transposed = _sparse(starts, flat, values)
        self._factor = _sparse(starts_by_row, by_row // width, values[by_row])

    def __call__(self, R: Tensor) -> Tensor:
        return (self._factor @ (self._transposed @ R.to(torch.float64))).to(R.dtype)


def neighbours_to_try(H: Operator) -> list[int]:
    """Numbers of neighbours, increasing, for which U fits into half of the memory budget; at least one number."""
    n = H.shape[0]
    largest = max(0, min(n, H.memory // (2 * _BYTES_PER_ENTRY * n)) - 1)
    return sorted({min(m, largest) for m in NEIGHBOURS})


def rehearse_neighbours(
    H: Operator, B: Tensor, generator: torch.Generator, candidates: Sequence[int]
) -> dict[int, float]:
    """Predicted iterations of CG to a residual of 0.01, by the number of neighbours.

    CG solves systems of the rows around random ones, which are as dense as in the whole system, for columns of B. The
    worse of two places counts. Candidates after the first one with few iterations are left out.
    """
    C = _coordinates(H)
    places = []
    for centre in permutation(len(C), generator, C.device)[:_PLACES]:
        near = torch.linalg.vector_norm(C - C[centre], dim=1).topk(_rehearsed_rows(H), largest=False).indices
        order = permutation(len(near), generator, C.device)
        places.append((C[near], H.small_blocks(near.unsqueeze(0))[0], B[near, :_COLUMNS].to(torch.float64), order))
    predicted: dict[int, float] = {}
    for m in candidates:
        iterations = max(_rehearse(*place, m, H.memory) for place in places)
        predicted[m] = _ITERATIONS * iterations
        if iterations <= _FEW_ITERATIONS:
            break
    return predicted


def cost_of_rehearsal(H: Operator) -> float:
    """Epochs of `rehearse_neighbours`, by the entries of K."""
    rows = _rehearsed_rows(H)
    return _PLACES * H.cost(rows) * rows / H.shape[0]


def predict_rehearsal(H: Operator, candidates: Sequence[int], rates: Rates) -> float:
    """Seconds of `rehearse_neighbours`."""
    rows = _PLACES * _rehearsed_rows(H)
    return sum(_predict_systems(rows, m + 1, rates) + 10 * rates.latency for m in candidates)


def _rehearsed_rows(H: Operator) -> int:
    """Rows around a random one: 512, fewer if their systems exceed a quarter of the memory budget."""
    return max(1, min(_ROWS, H.shape[0], math.isqrt(H.memory // (4 * _PLACES * _BYTES_PER_SMALL))))


def _rehearse(C: Tensor, A: Tensor, B: Tensor, order: Tensor, m: int, memory: int) -> float:
    """Iterations of CG for A X = B to a residual of 0.01, for a small dense A, with m neighbours; inf if too many."""
    m = min(m, len(A) - 1)
    precondition = InverseFactor(*_columns(C, lambda S: A[S.unsqueeze(2), S.unsqueeze(1)], order, m, memory))
    r = B.clone()
    goal = 0.01 * torch.linalg.vector_norm(r, dim=0)
    d = z = precondition(r)
    rz = (r * z).sum(0)
    for iteration in range(1, _MAX_ITERATIONS + 1):
        q = A @ d
        r -= rz / (d * q).sum(0).clamp_min(1e-300) * q
        if bool((torch.linalg.vector_norm(r, dim=0) <= goal).all()):
            return iteration
        z = precondition(r)
        before, rz = rz, (r * z).sum(0)
        d = z + rz / before.clamp_min(1e-300) * d
    return math.inf


def _columns(
    coordinates: Tensor, blocks: Callable[[Tensor], Tensor], order: Tensor, m: int, memory: int
) -> tuple[Tensor, Tensor]:
    """The rows (n, m + 1), int32, and the values (n, m + 1), float64, of the non-zero entries of every column of U.

    ``blocks``: computes H[S, S] (g, b, b) in float64 for an index S (g, b).  With H[S, S] = L L^T and row i the last of
    S, u_i = L^-T e_last. The first m + 1 rows together are one block.
    """
    n, device = len(order), order.device
    near = earlier_neighbours(coordinates[order], m, memory)
    index = torch.empty(n, m + 1, dtype=torch.int32, device=device)
    values = torch.empty(n, m + 1, dtype=torch.float64, device=device)
    first, identity = order[: m + 1], torch.eye(m + 1, dtype=torch.float64, device=device)
    values[first] = torch.linalg.solve_triangular(_factorise(blocks(first.unsqueeze(0)))[0], identity, upper=False)
    index[first] = first.to(torch.int32)
    at_once = min(_AT_ONCE.get(device.type, _AT_ONCE_GPU), memory // (4 * _BYTES_PER_SMALL))
    for part in spans(len(near), max(1, at_once // (m + 1) ** 2)):
        rows = order[part.start + m + 1 : part.stop + m + 1]
        S = torch.cat([order[near[part].long()], rows.unsqueeze(1)], 1)
        L = _factorise(blocks(S))
        values[rows] = torch.linalg.solve_triangular(L.mT, identity[:, -1:], upper=True).squeeze(2)
        index[rows] = S.to(torch.int32)
    return index, values


def _factorise(A: Tensor) -> Tensor:
    """Cholesky factors of small systems (g, b, b), which are changed in place."""
    A.diagonal(dim1=1, dim2=2).mul_(1.0 + _RIDGE)
    return torch.linalg.cholesky(A)


def _predict_systems(n: int, b: int, rates: Rates) -> float:
    """Seconds to evaluate and factorise n systems of size b."""
    return n * (b**2 / (_EVALUATE_PART * rates.evaluate) + b**3 / 3 / (_FACTORISE_PART * rates.factorise))


def _sparse(starts: Tensor, index: Tensor, values: Tensor) -> Tensor:
    """A square sparse matrix by rows."""
    n = len(starts) - 1
    with warnings.catch_warnings():
        # PyTorch warns that its sparse matrices may change.
        warnings.filterwarnings("ignore", "Sparse", UserWarning)
        return torch.sparse_csr_tensor(starts.int(), index.int(), values, (n, n), check_invariants=False)


def _build_cost(H: Operator, m: int) -> float:
    """Epochs of U, by the entries of K."""
    return H.cost((m + 1) ** 2)


def _coordinates(H: Operator) -> Tensor:
    if H.coordinates is None:
        raise ValueError(
            f"Vecchia needs rows with coordinates, which {type(H).__name__} does not have: use preconditioner='auto'"
        )
    return H.coordinates.to(torch.float64)
