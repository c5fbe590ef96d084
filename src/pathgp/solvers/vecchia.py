"""The Vecchia preconditioner: a sparse factor of H^-1 from the nearest rows of every row."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pathgp.compute.compact_groups import group_nearby_rows
from pathgp.compute.hardware import Rates
from pathgp.compute.random import permutation
from pathgp.operators import Operator, Preconditioner
from pathgp.operators.base import Solve, SolveInProgress
from pathgp.solvers.averages import MAX_AVERAGES, Groups, NoisyRows, average_groups, invert_averages
from pathgp.solvers.inverse_factor import BYTES_PER_SMALL, InverseFactor, factor_columns

# A rehearsal solves small systems of neighbouring rows by CG, to predict the iterations of the whole solve for every
# number of neighbours.

# Numbers of neighbours that a rehearsal tries.
NEIGHBOURS = (15, 30, 60, 120)
# The same for averages. Not 15: components of long wavelength would converge slowly, and the small systems of a
# rehearsal do not contain them.
_AVERAGED_NEIGHBOURS = (30, 60, 120)
# No more neighbours are tried once CG reaches a residual of 0.01 in this number of iterations.
_FEW_ITERATIONS = 3
# Predicted iterations for all rows, per iteration of the rehearsal. In up to three columns CG took 0.6 to 1.5 times the
# predicted iterations, in five columns 2.5 times (benchmarks/results/vecchia_cpu.json).
_ITERATIONS_PER_REHEARSED = 1.6
# Number of small systems of a rehearsal, each of the rows nearest to a random row; the larger number of iterations
# counts.
_REHEARSED_NEIGHBOURHOODS = 2
# Rows (or averages) of each system.
_REHEARSED_ROWS = 512
# Right-hand sides of a rehearsal.
_REHEARSED_COLUMNS = 4
# Largest number of CG iterations of a rehearsal for one number of neighbours.
_MAX_ITERATIONS = 60

# Rows per average that are tried.
_SIZES = (2, 4, 8, 16, 32, 64)
# Largest `Groups.unexplained` allowed: what nearby averages leave undetermined of the function within a group, relative
# to the noise. Measured in one to three columns: smaller groups need more neighbours, larger ones more iterations.
_MAX_UNEXPLAINED = 0.15
# Share of the groups that must meet this limit. Groups above `averages._DIVIDE_ABOVE` are divided when the
# preconditioner is built.
_SHARE_WITHIN_LIMIT = 0.8
# Neighbourhoods in which groups are sampled.
_SAMPLED_NEIGHBOURHOODS = 8
# Groups of each neighbourhood. If the data have fewer groups of a size, that size is not used.
_SAMPLED_GROUPS = 64
# Groups in the middle of a neighbourhood, for which `Groups.unexplained` is computed.
_MIDDLE_GROUPS = 8
# Averages on which these groups are conditioned.
_CONDITIONED = 15

# Bytes per entry of U: U and its transpose, the neighbours, and the sort that transposes.
_BYTES_PER_ENTRY = 48
# Rate at which small systems are factorised, relative to a large one. Measured on a CPU.
_FACTORISE_RATE = 0.08
# Rate at which entries of small systems are evaluated, relative to those of a tile of K. Measured on a CPU.
_EVALUATE_RATE = 0.8
# Seconds of a CPU thread per neighbour found.
_SECONDS_PER_NEIGHBOUR = 2.5e-7
# Seconds of a GPU per neighbour found, if cells are searched, and the number of its launches.
_SECONDS_PER_NEIGHBOUR_GPU, _SEARCH_LAUNCHES = 1e-8, 20
# A GPU searches cells for inputs of up to this number of columns, and otherwise compares all pairs of rows.
_CELL_COLUMNS = 3
# Rate at which a GPU compares pairs of rows, relative to the rate at which it evaluates entries of K.
_PAIR_RATE = 2.0
# Time of the systems of the groups, divided by that of equally many and equally large systems of U.
_GROUP_SYSTEMS = 1.5
# Bytes that are moved per row each time that the groups are divided in two.
_BYTES_PER_DIVISION = 1000
# Bytes that are moved per number that an application gathers for the groups.
_BYTES_PER_GATHERED = 55
# Bytes that an application moves per entry of U and column, and its launches: those of both products with U together.
_BYTES_PER_APPLIED, _APPLICATION_LAUNCHES = 10, 0.25
# Bytes that are moved per row of the data to find the rows nearest to a random row.
_BYTES_PER_DISTANCE = 100
# Launches to evaluate and factorise a set of small systems.
_SYSTEMS_LAUNCHES = 10


@dataclass(frozen=True)
class Vecchia(Preconditioner):
    """H^-1 ~ U U^T with a sparse U, for inputs of at most four columns.

    The rows are put in random order. S is row i and, of the rows before it, the m nearest; distances are in units of
    the length scales. Column i of U is zero except on S:

        u_i = x / sqrt(x_i),    H[S, S] x = e_i

    With m = n - 1 this is H^-1 exactly. Applying it takes two sparse products and no triangular solve.

    If many noisy rows lie within a length scale, single rows would need hundreds of neighbours. Then groups of up to g
    neighbouring rows are averaged, see `pathgp.solvers.averages`: U is the factor of the averages, and the differences
    of the rows of a group from their average are conditioned on the nearest averages, at most 30.
    Where the averages are dense, too, they are averaged again.

    ``neighbours``: m, at most n - 1. None: CG is tried on two small systems, the 512 rows nearest to a random row each.
    m is the first of 15, 30, 60 and 120 (with averages 30, 60 and 120) with which CG reaches a residual of 0.01 in
    three iterations on both, or else the one with the fewest. Noisier data and more columns need more neighbours. From
    five columns on other preconditioners need fewer iterations.
    ``averaged``: g, the largest number of rows per average; 1 for single rows. None: 1 if ``neighbours`` is given,
    otherwise the largest of 1, 2, 4, ..., 64 for which, in four of five sampled groups, the norm of the covariance of
    the function within the group, given the averages, is at most 0.15 times the noise variance.

    Without averages:

    - Build: time O(n m^3 + n m log n), n m^2 entries of K.
    - Application: time O(n m s).
    - Memory: 48 n (m + 1) bytes.

    With averages:

    - Build: the same with n / g in place of n, and n / g systems of size min(m, 30) + g for the groups.
    - Application: time O(n (m + g) s).
    - Memory: 48 n (m + 1) / g bytes, and n (min(m, 30) + g) numbers for the groups.

    All in float64, except for the matrices of the groups, which are stored in the dtype of H.
    Vecchia (1988), Schaefer, Katzfuss and Owhadi (2021).
    """

    label = "with Vecchia's preconditioner"

    neighbours: int | None = None
    averaged: int | None = None

    def __post_init__(self) -> None:
        for name in ("neighbours", "averaged"):
            value = getattr(self, name)
            is_count = isinstance(value, int) and not isinstance(value, bool) and value >= 1
            if value is not None and not is_count:
                raise ValueError(f"{name} must be an integer of at least 1, or None, got {value!r}")

    def build(self, run: SolveInProgress) -> tuple[Solve, str]:
        H, g = run.H, self.averaged or 1
        if g > 1:
            _check_averages(H)
        m = self._neighbour_limit(H)
        predicted = ""
        if self.neighbours is None:
            g = self.averaged or choose_averages(H, run.generator)
            iterations = rehearse_neighbours(H, run.b, run.generator, neighbours_to_try(H, g), g)
            m = min(iterations, key=lambda m: iterations[m])
            predicted = f", {_describe_iterations(iterations[m])} predicted"
            run.epochs += cost_of_rehearsal(H)
        run.epochs += _build_cost(H, m, g)
        if g > 1:
            note = f"Vecchia with averages of {g} rows, {m} neighbours{predicted}"
            return invert_averages(H, g, m, run.generator), note
        coordinates = _coordinates(H)
        order = permutation(H.shape[0], run.generator, H.device)
        factor = InverseFactor(*factor_columns(coordinates, H.small_blocks, order, m, H.memory))
        return factor, f"Vecchia with {m} neighbours{predicted}"

    def cost(self, H: Operator) -> float:
        rehearsal = cost_of_rehearsal(H) if self.neighbours is None else 0.0
        return _build_cost(H, self._neighbour_limit(H), self.averaged or 1) + rehearsal

    def predict_seconds(self, H: Operator, s: int, epochs: float, product: float, rates: Rates) -> float:
        """Seconds of the build and of all epochs.

        The build finds neighbours, evaluates the small systems and factorises them. An epoch has two products with U,
        whose time is that of reading U. Averages add the groups, their systems, and per epoch two products with them.
        """
        n, b, g = H.shape[0], self._neighbour_limit(H) + 1, self.averaged or 1
        count = math.ceil(n / g)
        near = count**2 / (_PAIR_RATE * rates.evaluate)
        if H.device.type != "cpu" and (H.stationary_dim or math.inf) <= _CELL_COLUMNS:
            near = count * b * _SECONDS_PER_NEIGHBOUR_GPU + _SEARCH_LAUNCHES * rates.latency
        elif H.device.type == "cpu":
            near = count * b * _SECONDS_PER_NEIGHBOUR / torch.get_num_threads()
        build = near + _predict_systems(count, b, rates)
        application = _BYTES_PER_APPLIED * count * b * s / rates.read + _APPLICATION_LAUNCHES * rates.latency
        if g > 1:
            m = min(b - 1, MAX_AVERAGES)
            build += near + _GROUP_SYSTEMS * _predict_systems(count, g + m, rates)
            build += n * math.log2(max(2, count)) * _BYTES_PER_DIVISION / rates.read
            application += _BYTES_PER_GATHERED * (n + count * m) * s / rates.read
        return build + epochs * (product + application)

    def _neighbour_limit(self, H: Operator) -> int:
        """The given number of neighbours, or the largest candidate; ValueError if it exceeds the memory budget."""
        g = self.averaged or 1
        if self.neighbours is None:
            return neighbours_to_try(H, g)[-1]
        m = min(self.neighbours, math.ceil(H.shape[0] / g) - 1)
        if g > 1:
            m = max(1, m)
        if (required := _bytes(H, m, g)) > H.memory:
            raise ValueError(
                f"{self} needs {required / 1e9:.3g} GB, the budget is {H.memory / 1e9:.3g} GB: "
                "use fewer neighbours or raise memory="
            )
        return m


def neighbours_to_try(H: Operator, rows_per_average: int = 1) -> list[int]:
    """Numbers of neighbours, increasing, for which U fits into half of the memory budget; at least one number."""
    count = math.ceil(H.shape[0] / rows_per_average)
    memory = H.memory // 2 - (_bytes(H, 0, rows_per_average) if rows_per_average > 1 else 0)
    largest = max(0, min(count, max(0, memory) // (_BYTES_PER_ENTRY * count)) - 1)
    return sorted({min(m, largest) for m in (_AVERAGED_NEIGHBOURS if rows_per_average > 1 else NEIGHBOURS)})


def choose_averages(H: Operator, generator: torch.Generator) -> int:
    """Return the number of rows per average.

    It is 1 if averages do not help, if a row has no noise, or if the kernel is not stationary. Otherwise sizes 2, 4,
    ..., 64 are tried on groups near random rows, conditioned on nearby averages. The result is the last size up to
    which, in four of five groups, the norm of the conditional covariance is at most 0.15 times the noise variance.
    """
    n, best = H.shape[0], 1
    if H.locations is None or H.coordinates is None or not float(H.noise.min()) > 0.0:
        return best
    neighbourhoods = list(_neighbourhoods(H, generator, _SAMPLED_GROUPS * _SIZES[-1], _SAMPLED_NEIGHBOURHOODS))
    for g in _SIZES:
        if n < _SAMPLED_GROUPS * g or _bytes(H, _AVERAGED_NEIGHBOURS[0], g) > H.memory // 2:
            break
        unexplained = torch.cat([_unexplained(H, rows[: _SAMPLED_GROUPS * g], g) for rows in neighbourhoods])
        if float(unexplained.quantile(_SHARE_WITHIN_LIMIT)) > _MAX_UNEXPLAINED:
            break
        best = g
    return best


def rehearse_neighbours(
    H: Operator, B: Tensor, generator: torch.Generator, candidates: Sequence[int], rows_per_average: int = 1
) -> dict[int, float]:
    """Predicted iterations of CG to a residual of 0.01, for every candidate number of neighbours.

    CG solves two small systems: the rows (or averages) nearest to a random row each, with up to four columns of B.
    These rows are as dense as in the whole system. The prediction is 1.6 times the larger number of iterations.
    Candidates after the first with at most three iterations are skipped.
    """
    C = _coordinates(H)
    systems = []
    for rows in _neighbourhoods(H, generator, rows_per_average * _rehearsed_rows(H), _REHEARSED_NEIGHBOURHOODS):
        b = B[rows, :_REHEARSED_COLUMNS].to(torch.float64)
        if rows_per_average > 1:
            groups = _group(H, rows, rows_per_average)
            A = H.covariances(groups.averages.locations.unsqueeze(0))[0]
            A.diagonal().add_(groups.averages.noise)
            values = b[groups.rows.clamp(max=len(rows) - 1)]
            b, coordinates = (groups.average_weights.unsqueeze(2) * values).sum(1), groups.averages.coordinates
        else:
            A, coordinates = H.small_blocks(rows.unsqueeze(0))[0], C[rows]
        systems.append((coordinates, A, b, permutation(len(A), generator, C.device)))
    predicted: dict[int, float] = {}
    for m in candidates:
        iterations = max(_count_iterations(*system, m, H.memory) for system in systems)
        predicted[m] = _ITERATIONS_PER_REHEARSED * iterations
        if iterations <= _FEW_ITERATIONS:
            break
    return predicted


def _neighbourhoods(H: Operator, generator: torch.Generator, size: int, count: int) -> Iterator[Tensor]:
    """``count`` neighbourhoods: the indices of at most ``size`` rows nearest to a random row, the nearest first."""
    C = _coordinates(H)
    for centre in permutation(len(C), generator, C.device)[:count]:
        distances = torch.linalg.vector_norm(C - C[centre], dim=1)
        yield distances.topk(min(size, len(C)), largest=False).indices


def _group(H: Operator, rows: Tensor, rows_per_average: int) -> Groups:
    """Groups of a subset of the rows; `Groups.rows` are positions in this subset."""
    assert H.locations is not None
    noise = H.noise[rows] if H.noise.ndim else H.noise.expand(len(rows))
    coordinates = _coordinates(H)[rows]
    groups = group_nearby_rows(coordinates, rows_per_average)
    return average_groups(NoisyRows(H.locations[rows], coordinates, noise), groups, rows[:0])


def _unexplained(H: Operator, rows: Tensor, rows_per_average: int) -> Tensor:
    """`Groups.unexplained` of the groups of a neighbourhood that are nearest to its centre rows[0]."""
    groups = _group(H, rows, rows_per_average)
    to_centre = torch.linalg.vector_norm(groups.averages.coordinates - _coordinates(H)[rows[:1]], dim=1)
    middle = to_centre.topk(min(_MIDDLE_GROUPS, len(to_centre)), largest=False).indices
    between_groups = torch.cdist(groups.averages.coordinates[middle], groups.averages.coordinates)
    near = between_groups.topk(min(_CONDITIONED, len(to_centre)), largest=False).indices
    _, F = groups.condition_on_averages(H.covariances, middle, near)
    return groups.unexplained(F, middle)


def cost_of_rehearsal(H: Operator) -> float:
    """Epochs of `rehearse_neighbours`, from the number of entries of K."""
    rows = _rehearsed_rows(H)
    return _REHEARSED_NEIGHBOURHOODS * H.cost(rows) * rows / H.shape[0]


def predict_rehearsal(H: Operator, candidates: Sequence[int], rates: Rates) -> float:
    """Seconds of `rehearse_neighbours`."""
    rows = _REHEARSED_NEIGHBOURHOODS * _rehearsed_rows(H)
    return sum(_predict_systems(rows, m + 1, rates) + _SYSTEMS_LAUNCHES * rates.latency for m in candidates)


def predict_choice(H: Operator, rates: Rates) -> float:
    """Seconds of `choose_averages` if it ends after two sizes: neighbourhoods, groups and their systems."""
    systems = sum(_predict_systems(_MIDDLE_GROUPS, _CONDITIONED + g, rates) for g in _SIZES[:2])
    return _SAMPLED_NEIGHBOURHOODS * (
        _BYTES_PER_DISTANCE * H.shape[0] / rates.read + systems + _SYSTEMS_LAUNCHES * rates.latency
    )


def _rehearsed_rows(H: Operator) -> int:
    """Rows of each system of a rehearsal: 512, fewer if the systems exceed a quarter of the memory budget."""
    allowed = H.memory // (4 * _REHEARSED_NEIGHBOURHOODS * BYTES_PER_SMALL)
    return max(1, min(_REHEARSED_ROWS, H.shape[0], math.isqrt(allowed)))


def _count_iterations(C: Tensor, A: Tensor, B: Tensor, order: Tensor, m: int, memory: int) -> float:
    """Iterations of CG with m neighbours for a small dense A, A X = B, to a residual of 0.01; inf for more than 60."""
    m = min(m, len(A) - 1)
    precondition = InverseFactor(*factor_columns(C, lambda S: A[S.unsqueeze(2), S.unsqueeze(1)], order, m, memory))
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
        previous_rz = rz
        rz = (r * z).sum(0)
        d = z + rz / previous_rz.clamp_min(1e-300) * d
    return math.inf


def _describe_iterations(iterations: float) -> str:
    return (
        f"about {iterations:.0f} iterations" if math.isfinite(iterations) else f"more than {_MAX_ITERATIONS} iterations"
    )


def _predict_systems(n: int, b: int, rates: Rates) -> float:
    """Seconds to evaluate and factorise n systems of size b."""
    return n * (b**2 / (_EVALUATE_RATE * rates.evaluate) + b**3 / 3 / (_FACTORISE_RATE * rates.factorise))


def _build_cost(H: Operator, m: int, g: int) -> float:
    """Cost of building U and the groups in epochs, by the number of evaluated entries of K."""
    if g == 1:
        return H.cost((m + 1) ** 2)
    entries_per_average = (m + 1) ** 2 + (min(m, MAX_AVERAGES) + g) ** 2
    return H.cost(math.ceil(entries_per_average / g))


def _bytes(H: Operator, m: int, g: int) -> int:
    """Bytes of U and of the matrices of the groups."""
    groups = H.shape[0] * (g + MAX_AVERAGES) * H.dtype.itemsize if g > 1 else 0
    return _BYTES_PER_ENTRY * math.ceil(H.shape[0] / g) * (m + 1) + groups


def _check_averages(H: Operator) -> None:
    """Raise ValueError, with advice, if the rows of H cannot be averaged."""
    _coordinates(H)
    if H.locations is None:
        raise ValueError(f"averaged needs a stationary kernel, which {type(H).__name__} does not have: use averaged=1")
    if not float(H.noise.min()) > 0.0:
        raise ValueError("averaged needs positive noise for every row: use averaged=1")


def _coordinates(H: Operator) -> Tensor:
    """The coordinates of the rows (n, c), in which nearby rows have a large covariance, in float64."""
    if H.coordinates is None:
        raise ValueError(
            f"Vecchia needs rows with coordinates, which {type(H).__name__} does not have: use preconditioner='auto'"
        )
    return H.coordinates.to(torch.float64)
