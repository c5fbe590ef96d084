"""A preconditioner for dense rows: Vecchia's factor of averages of neighbouring rows, and an inverse for each group.

If many noisy rows lie within a length scale, each of them carries little information, and a factor of single rows would
need hundreds of neighbours. The average of a group of g rows has g times less noise variance: a few nearby averages
determine the function. Let y = f + e be observations with noise variances s_i^2, and for every group

    w_i = s_i^-2 / sum_j s_j^-2,    average ybar = sum_i w_i y_i,    fluctuations y_i - ybar

The noise of the averages is independent of the noise of the fluctuations. Two approximations are made:

- An average is an observation of f at the centre sum_i w_i x_i of its group, with noise variance 1 / sum_j s_j^-2.
  (The first-order Taylor terms of f about the centre cancel in the average.) The inverse covariance of all averages is
  U U^T.
- Given the nearest averages, the fluctuations of a group are treated as independent of all other groups.

Together they define a positive-definite approximation of H^-1, because the map from rows to averages and fluctuations
is invertible. It is applied by products alone, without triangular or iterative solves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from pathgp.compute.compact_groups import group_nearby_rows
from pathgp.compute.memory import spans
from pathgp.compute.neighbours import nearest_neighbours
from pathgp.compute.random import permutation
from pathgp.operators import Operator
from pathgp.solvers.inverse_factor import InverseFactor, factor_columns, systems_at_once

Covariances = Callable[[Tensor], Tensor]
"""K at sets of points (p, b, d): (p, b, b), float64."""

# The largest number of averages on which fluctuations are conditioned.
MAX_AVERAGES = 30
# A group with a larger `Groups.unexplained` is divided into single rows; a group of averages already with this one.
_DIVIDE_ABOVE, _DIVIDE_AVERAGES_ABOVE = 0.5, 0.15
# Averages are averaged again if there are at least this many, in groups of this size, and if at least this share of the
# groups is not divided.
_LEAST_AVERAGES, _AVERAGES_PER_GROUP, _LEAST_SHARE = 128, 4, 0.03
# Number of entries of the gathered columns, those of rows and averages of the groups, that are multiplied at once, on a
# CPU and on a GPU.
_AT_ONCE = {"cpu": 2**22}
_AT_ONCE_GPU = 2**28


class NoisyRows(NamedTuple):
    """Observations of f with independent noise.

    locations: inputs of the kernel (n, d).
    coordinates: coordinates in which nearby rows have a large covariance (n, c).
    noise: noise variances (n,).
    """

    locations: Tensor
    coordinates: Tensor
    noise: Tensor


class Groups(NamedTuple):
    """M groups of up to g rows, and t single rows. Averages are ordered: those of the M groups, then the t single rows.

    Points and centres are inputs of the kernel; coordinates are used only to find neighbours.

    rows: indices of the rows of every group (M, g); groups with fewer rows are filled up with the index n.
    noise, average_weights: noise variances and weights w of the rows (M, g); 1 and 0 for missing rows.
    points: inputs of the rows (M, g, d).
    singles: indices of the rows outside of groups (t,).
    averages: of the groups and single rows (M + t); their locations are the centres.

    All numbers are float64.
    """

    rows: Tensor
    noise: Tensor
    average_weights: Tensor
    points: Tensor
    singles: Tensor
    averages: NoisyRows

    def condition_on_averages(
        self, covariances: Covariances, selected: Tensor | slice, near: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Condition the fluctuations of f in p groups on m averages each.

        Args:
            covariances: the kernel.
            selected: the p groups.
            near: indices of the averages to condition on (p, m).

        Returns:
            W (p, g, m): the conditional mean of the fluctuations is W times the averages.
            F (p, g, g): their conditional covariance.
        """
        m, w = near.shape[1], self.average_weights[selected].unsqueeze(1)
        K = covariances(torch.cat([self.averages.locations[near], self.points[selected]], 1))
        averages, cross, own = K[:, :m, :m].clone(), K[:, m:, :m], K[:, m:, m:]
        averages.diagonal(dim1=1, dim2=2).add_(self.averages.noise[near])
        # Only triangular solves: other solves of torch process small systems one after the other on a GPU.
        L = torch.linalg.cholesky(averages)
        half = torch.linalg.solve_triangular(L, cross.mT, upper=False)
        W = torch.linalg.solve_triangular(L.mT, half, upper=True).mT
        F = own - half.mT @ half
        # From f to fluctuations: subtract the weighted average of the group, from rows and columns.
        F = F - w @ F
        F = F - F @ w.mT
        is_row = (self.average_weights[selected] > 0).unsqueeze(2)
        return (W - w @ W) * is_row, F * (is_row & is_row.mT)

    def unexplained(self, F: Tensor, selected: Tensor | slice) -> Tensor:
        """Frobenius norms (p,) of conditional covariances F (p, g, g) of p groups, in units of the noise variance.

        They are upper bounds of the largest eigenvalues: how much of f within a group the averages do not determine.
        """
        deviation = self.noise[selected].sqrt()
        return torch.linalg.matrix_norm(F / (deviation.unsqueeze(1) * deviation.unsqueeze(2)))


def average_groups(data: NoisyRows, rows: Tensor, singles: Tensor) -> Groups:
    """Average observations over groups of rows (M, g); ``singles``: indices of the rows outside of groups (t,)."""
    n = len(data.noise)
    is_row = rows < n
    # Any valid index for missing rows: their weight is zero.
    index = rows.clamp(max=n - 1)
    noise_of_rows = torch.where(is_row, data.noise[index].to(torch.float64), 1.0)
    inverse_noise = torch.where(is_row, 1.0 / noise_of_rows, 0.0)
    average_noise = 1.0 / inverse_noise.sum(1)
    weights = inverse_noise * average_noise.unsqueeze(1)
    points = data.locations[index].to(torch.float64)

    def average(values: Tensor) -> Tensor:
        values = values.to(torch.float64)
        return torch.cat([torch.bmm(weights.unsqueeze(1), values[index]).squeeze(1), values[singles]])

    return Groups(
        rows=rows,
        noise=noise_of_rows,
        average_weights=weights,
        points=points,
        singles=singles,
        averages=NoisyRows(
            locations=average(data.locations),
            coordinates=average(data.coordinates),
            noise=torch.cat([average_noise, data.noise[singles].to(torch.float64)]),
        ),
    )


def invert_averages(H: Operator, size: int, neighbours: int, generator: torch.Generator) -> AveragedInverse:
    """The approximate inverse of H, an operator with `locations` and with positive noise.

    Args:
        size: the largest number of rows of a group.
        neighbours: number of neighbours of each average in U.
        generator: source of the random order of the averages.
    """
    assert H.locations is not None
    assert H.coordinates is not None
    data = NoisyRows(H.locations, H.coordinates.to(torch.float64), H.noise.expand(H.shape[0]))
    inverse = AveragedInverse(data, H.covariances, size, _DIVIDE_ABOVE, neighbours, H.dtype, H.memory)
    inverse.invert_averages(generator)
    return inverse


class AveragedInverse:
    """R -> P^-1 R with P^-1 ~ H^-1: U U^T for the averages, and a small inverse for the fluctuations of every group.

    Let rbar be all averages of r. For one group let rbar_own be its average, rbar_near those that it is conditioned on,
    W and F the results of `Groups.condition_on_averages`, and C = F + diag(s^2):

        e = r - rbar_own - W rbar_near,    q = (I - w 1^T) C^-1 e
        h = U U^T rbar - (sum over all groups of W^T q),    P^-1 r = q + w h_own

    U U^T is replaced by another `AveragedInverse` if the averages are dense. Groups in regions of sparse rows, which
    the averages leave largely unexplained, are divided into single rows.

    Args:
        data: the rows, with positive noise.
        covariances: the kernel.
        size: the largest number of rows of a group.
        divide_above: the largest `Groups.unexplained` of a group.
        neighbours: number of neighbours of each average in U.
        dtype: of the stored matrices.
        memory: budget in bytes.
    """

    def __init__(
        self,
        data: NoisyRows,
        covariances: Covariances,
        size: int,
        divide_above: float,
        neighbours: int,
        dtype: torch.dtype,
        memory: int,
    ) -> None:
        self.covariances, self.neighbours, self.dtype, self.memory = covariances, neighbours, dtype, memory
        n = len(data.noise)
        rows = group_nearby_rows(data.coordinates, size)
        singles = rows.new_empty(0)
        groups = average_groups(data, rows, singles)
        unexplained = self._condition(groups)
        if bool((is_too_large := unexplained > divide_above).any()):
            singles = rows[is_too_large].flatten()
            # Without the index n, which fills up groups.
            singles = singles[singles < n]
            groups = average_groups(data, rows[~is_too_large], singles)
            self._condition(groups)
        self.averages, self.undivided = groups.averages, 1.0 - float(is_too_large.double().mean())

    def invert_averages(self, generator: torch.Generator) -> None:
        """Set the approximate inverse of the averages; ``generator``: source of their random order in U."""
        data, count = self.averages, len(self.averages.noise)
        if count >= _LEAST_AVERAGES:
            groups = (_AVERAGES_PER_GROUP, _DIVIDE_AVERAGES_ABOVE)
            inverse = AveragedInverse(data, self.covariances, *groups, self.neighbours, self.dtype, self.memory)
            if inverse.undivided >= _LEAST_SHARE:
                inverse.invert_averages(generator)
                self.factor: Callable[[Tensor], Tensor] = inverse
                return

        def blocks(S: Tensor) -> Tensor:
            K = self.covariances(data.locations[S])
            K.diagonal(dim1=1, dim2=2).add_(data.noise[S])
            return K

        order = permutation(count, generator, data.noise.device)
        columns = factor_columns(data.coordinates, blocks, order, min(self.neighbours, count - 1), self.memory)
        self.factor = InverseFactor(*columns)

    def _condition(self, groups: Groups) -> Tensor:
        """Condition the fluctuations of all groups on the nearest averages; return their `Groups.unexplained` (M,)."""
        (count, width), device = groups.rows.shape, groups.rows.device
        m = min(self.neighbours, MAX_AVERAGES, len(groups.averages.noise))
        self.rows, self.singles = groups.rows, groups.singles
        self.average_weights = groups.average_weights.to(self.dtype)
        self.near = nearest_neighbours(groups.averages.coordinates, m, self.memory, count)
        self.regression = torch.empty(count, width, m, dtype=self.dtype, device=device)
        self.inverses = torch.empty(count, width, width, dtype=self.dtype, device=device)
        unexplained = torch.empty(count, dtype=torch.float64, device=device)
        identity = torch.eye(width, dtype=torch.float64, device=device)
        for batch in spans(count, systems_at_once(width + m, device, self.memory)):
            W, F = groups.condition_on_averages(self.covariances, batch, self.near[batch].long())
            unexplained[batch] = groups.unexplained(F, batch)
            # The fluctuations of f and noise together have the singular covariance
            # F + diag(s^2) - average_noise 1 1^T, with null vector w. The inverse of F + diag(s^2) is a generalised
            # inverse of it.
            F.diagonal(dim1=1, dim2=2).add_(groups.noise[batch])
            self.regression[batch] = W.to(self.dtype)
            half = torch.linalg.solve_triangular(torch.linalg.cholesky(F), identity, upper=False)
            self.inverses[batch] = (half.mT @ half).to(self.dtype)
        return unexplained

    def __call__(self, R: Tensor) -> Tensor:
        n, s = R.shape
        count, batches = len(self.rows), self._batches(s)
        # Row n takes the values of missing rows.
        result = R.new_empty(n + 1, s)
        average = R.new_empty(count + len(self.singles), s)
        for batch in batches:
            average[batch] = torch.bmm(self.average_weights[batch].unsqueeze(1), self._gather(R, batch)).squeeze(1)
        average[count:] = R[self.singles]
        correction = torch.zeros_like(average)
        # The result holds q until all groups have contributed to h.
        for batch in batches:
            near = self.near[batch].long()
            prediction = average[batch].unsqueeze(1) + torch.bmm(self.regression[batch], average[near])
            e = (self._gather(R, batch) - prediction).mul_((self.rows[batch] < n).unsqueeze(2))
            q = torch.bmm(self.inverses[batch], e)
            q -= self.average_weights[batch].unsqueeze(2) * q.sum(1, keepdim=True)
            correction.index_add_(0, near.flatten(), torch.bmm(self.regression[batch].mT, q).flatten(0, 1))
            result[self.rows[batch].flatten()] = q.flatten(0, 1)
        h = self.factor(average) - correction
        for batch in batches:
            change = self.average_weights[batch].unsqueeze(2) * h[batch].unsqueeze(1)
            result[self.rows[batch].flatten()] += change.flatten(0, 1)
        result[self.singles] = h[count:]
        return result[:n]

    def _gather(self, R: Tensor, batch: slice) -> Tensor:
        """Rows of R by groups (p, g, s); a missing row is replaced by the last row of R, which callers must ignore."""
        return R[self.rows[batch].clamp(max=len(R) - 1)]

    def _batches(self, s: int) -> list[slice]:
        """Slices of the groups that are multiplied at once, for s columns."""
        at_once = min(_AT_ONCE.get(self.rows.device.type, _AT_ONCE_GPU), self.memory // 64)
        width = self.rows.shape[1] + self.near.shape[1]
        return list(spans(len(self.rows), max(1, at_once // (width * s))))
