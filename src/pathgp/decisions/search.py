"""The maxima of posterior paths over a box: proposals, gradient ascent, and the choice of one end point per path."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from pathgp.compute.memory import spans
from pathgp.decisions.domain import Domain
from pathgp.decisions.top import top_rows
from pathgp.kernels import Stationary
from pathgp.kernels.expression import leaves
from pathgp.posterior.table import Posterior

# Rows at which paths are evaluated at once.
_BLOCK = 4096
# Decay rates of the two moments of Adam.
_DECAY = (0.9, 0.999)
# Share of the steps that are taken from all starts.
_FIRST_SHARE = 1 / 3
# Number of ascents per path that continue after these steps.
_FINALISTS = 2
# Their learning rate, relative to that of the first steps.
_LAST_RATE = 0.4
# Number of new proposals for a path if all its end points are taken already.
_ALTERNATIVES = 64
# One in this number of the paths with a known maximum (see ``min_gain`` of `maximise_paths`) returns it nevertheless,
# to refine the best point.
_REFINING = 10


class PathSearch:
    """The search for the maxima of p paths.

    Args:
        post: a posterior with paths.
        domain: the box, with columns of choices and a constraint.
        sign: 1.0 for maxima, -1.0 for minima; values are those of the paths times this sign.
        paths: indices of the paths (p,).
        generator: source of the proposals.
    """

    def __init__(self, post: Posterior, domain: Domain, sign: float, paths: Tensor, generator: torch.Generator) -> None:
        self.post, self.domain, self.sign, self.paths, self.generator = post, domain, sign, paths, generator
        self.spread = proposal_spread(post, domain)
        self.targets = sign * _targets(post)

    @torch.no_grad()
    def find_starts(self, starts: int, proposals: int, explore: float) -> Tensor:
        """Starting points of every path (p, 1 + starts, d): a uniform point, then the best proposal of every round."""
        centres, weights = self.post.X.to(torch.float64), _rank_weights(self.targets)
        points = [self.domain.uniform(len(self.paths), self.generator)]
        for _ in range(starts):
            X = self.domain.propose(proposals, centres, weights, self.spread, explore, self.generator)
            _, rows = top_rows(path_blocks(self.post, X, self.paths, self.sign), 1)
            points.append(X[rows[:, 0]])
        return torch.stack(points, 1)

    def ascend(self, X: Tensor, steps: int, rate: float) -> tuple[Tensor, Tensor]:
        """Gradient ascent from all starting points X (p, q, d): the end points, and their values (p, q).

        After the first third of the steps only the best two ascents of every path continue.
        """
        first = math.ceil(_FIRST_SHARE * steps) if X.shape[1] > _FINALISTS else steps
        X, values = self._run_adam(X, first, rate)
        if steps > first:
            best = values.topk(_FINALISTS, 1).indices
            rows = torch.arange(len(X), device=X.device).unsqueeze(1)
            X[rows, best], values[rows, best] = self._run_adam(X[rows, best], steps - first, _LAST_RATE * rate)
        return X, values

    def _run_adam(self, X: Tensor, steps: int, rate: float) -> tuple[Tensor, Tensor]:
        """Steps of Adam from X (p, q, d) in the box: the best allowed point of every ascent, and its value (p, q)."""
        is_continuous = self.domain.continuous
        best, best_values = X.clone(), self._evaluate(X)
        if steps == 0 or not bool(is_continuous.any()):
            return best, best_values
        # z: the offset from the starting point in units of the spread, so that one rate suits all columns.
        z = torch.zeros_like(X).requires_grad_()
        moments = torch.zeros_like(X), torch.zeros_like(X)
        lower = (self.domain.lower - X) / self.spread
        upper = (self.domain.upper - X) / self.spread
        for step in range(steps):
            values = self.post.paths_at(X + z * self.spread, self.paths)
            (gradient,) = torch.autograd.grad(self.sign * values.sum(), z)
            gradient[..., ~is_continuous] = 0.0
            # The starting points were evaluated above.
            if step > 0:
                points = (X + z * self.spread).detach()
                _keep_better(best, best_values, points, self.sign * values.detach(), self.domain)
            # Adam, written out: importing torch.optim takes seconds.
            moments[0].lerp_(gradient, 1.0 - _DECAY[0])
            moments[1].lerp_(gradient.square(), 1.0 - _DECAY[1])
            mean, mean_square = (
                moment / (1.0 - decay ** (step + 1)) for moment, decay in zip(moments, _DECAY, strict=True)
            )
            step_size = 0.5 * rate * (1.0 + math.cos(math.pi * step / steps))
            with torch.no_grad():
                z.addcdiv_(mean, mean_square.sqrt_().add_(1e-8), value=step_size)
                z.copy_(torch.minimum(torch.maximum(z, lower), upper))
        last = (X + z * self.spread).detach()
        _keep_better(best, best_values, last, self._evaluate(last), self.domain)
        # Rounding may have moved points out of the box.
        return self.domain.clip(best), best_values

    def try_choices(self, X: Tensor, values: Tensor, steps: int, rate: float) -> tuple[Tensor, Tensor]:
        """Try all values of the columns with choices, one column after the other, then ascend again."""
        for column, allowed in self.domain.choices.items():
            for choice in allowed:
                changed = X.clone()
                changed[..., column] = choice
                _keep_better(X, values, changed, self._evaluate(changed), self.domain)
        return self._run_adam(X, steps // 2, 0.5 * rate)

    def choose_distinct(self, X: Tensor, values: Tensor, taken: set[bytes], min_gain: float) -> tuple[Tensor, Tensor]:
        """Return for every path the best of its end points X (p, q, d) that is not taken.

        Points are taken if their keys are in ``taken``; the keys of the chosen points are added to it. If all end
        points of a path are taken, see `_alternative`. Returns points (p, d) and values (p,).

        ``values``: those of the end points (p, q).  ``min_gain``: see `maximise_paths`.
        """
        score = values if min_gain == 0.0 else self._score_end_points(X, values, min_gain)
        order, keys, q = score.argsort(1, descending=True).tolist(), self.domain.keys(X.flatten(0, 1)), X.shape[1]
        chosen, alternatives = [], []
        for j, ranked in enumerate(order):
            own = keys[j * q : (j + 1) * q]
            k = next((k for k in ranked if own[k] not in taken), None)
            if k is None:
                k, point, value = ranked[0], *self._alternative(j, X[j, ranked[0]], taken)
                alternatives.append((j, point, value))
                taken.update(self.domain.keys(point.unsqueeze(0)))
            else:
                taken.add(own[k])
            chosen.append(k)
        index = torch.tensor(chosen, device=X.device)
        rows = torch.arange(len(X), device=X.device)
        points, result = X[rows, index], values[rows, index]
        for j, point, value in alternatives:
            points[j], result[j] = point, value
        return points, result

    @torch.no_grad()
    def _score_end_points(self, X: Tensor, values: Tensor, min_gain: float) -> Tensor:
        """Scores (p, q) that rank the end points X (p, q, d): the values of the paths, with one exception.

        Nine of ten paths with a known maximum (see ``min_gain`` of `maximise_paths`) put the end point of the uniform
        start, column 0, first.
        """
        best = values.argmax(1)
        rows = torch.arange(len(X), device=X.device)
        mean = self.sign * self.post.mean(X[rows, best])
        is_known = (values[rows, best] - mean).abs() < min_gain * self.targets.std(correction=0)
        score = values.clone()
        score[is_known & (rows % _REFINING != 0), 0] = torch.inf
        return score

    def _alternative(self, j: int, X: Tensor, taken: set[bytes]) -> tuple[Tensor, Tensor]:
        """Return the best untaken one of 64 new proposals for path j, most of them near X (d,).

        If all are taken, return the best.
        """
        weight = torch.ones(1, dtype=torch.float64)
        proposals = self.domain.propose(_ALTERNATIVES, X.unsqueeze(0), weight, 0.2 * self.spread, 0.1, self.generator)
        with torch.no_grad():
            values = self.sign * self.post.paths_at(proposals.unsqueeze(0), self.paths[j : j + 1])[0]
        keys = self.domain.keys(proposals)
        order: list[int] = values.argsort(descending=True).tolist()
        k = next((k for k in order if keys[k] not in taken), order[0])
        return proposals[k], values[k]

    @torch.no_grad()
    def _evaluate(self, X: Tensor) -> Tensor:
        """Values (p, q) of the paths, each at its own points X (p, q, d)."""
        values: Tensor = self.sign * self.post.paths_at(X, self.paths)
        return values


def _keep_better(best: Tensor, best_values: Tensor, X: Tensor, values: Tensor, domain: Domain) -> None:
    """Write allowed points X (p, q, d) with larger values (p, q) into ``best`` and ``best_values``."""
    is_better = (values > best_values) & domain.allows(X.flatten(0, 1)).view(values.shape)
    best[is_better], best_values[is_better] = X[is_better], values[is_better]


def proposal_spread(post: Posterior, domain: Domain) -> Tensor:
    """The largest standard deviation of proposals in every column (d,), which is also the unit of steps.

    Half of the shortest length scale of the column, at most half of the width of the box. A tenth of the width for
    columns without a length scale.
    """
    columns, width = range(len(domain.lower)), domain.width
    spread = torch.full_like(width, torch.inf)
    for kernel, seen in leaves(post.model.kernel, columns):
        if isinstance(kernel, Stationary):
            index = torch.tensor(seen, device=width.device)
            length = kernel.lengthscales(len(seen), width.device).detach().to(torch.float64).expand(len(seen))
            spread[index] = torch.minimum(spread[index], 0.5 * length * post.scaling.scale[index])
    spread = torch.where(spread.isinf(), 0.1 * width, spread)
    return torch.minimum(spread, 0.5 * width)


def _targets(post: Posterior) -> Tensor:
    """The observed values (n,), or the posterior mean of a posterior that was saved without them."""
    if post.system.is_complete:
        return post.training_targets()
    with torch.no_grad():
        mean: Tensor = post.mean(post.X).to(torch.float64)
    return mean


def _rank_weights(values: Tensor) -> Tensor:
    """1 / rank of every value (n,), with rank 1 for the largest: half of the weight is on about sqrt(n) values."""
    weights = torch.empty_like(values)
    weights[values.argsort(descending=True)] = 1.0 / torch.arange(1, len(values) + 1).to(values)
    return weights


def path_blocks(post: Posterior, X: Tensor, paths: Tensor, sign: float) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield, block by block, the indices of b rows of X and the values of the p paths there (p, b)."""
    for rows in spans(len(X), _BLOCK):
        values = sign * post.paths(X[rows])
        yield torch.arange(rows.start, rows.stop), values[paths.to(values.device)]
