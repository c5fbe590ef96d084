"""The maximum of every posterior path: one step of Thompson sampling in batches.

    x_j = argmax_x f_j(x),   f_1, ..., f_s posterior paths

Paths are smooth functions with many local maxima. As in section 3.3.2 of the thesis every path is evaluated at many
proposals, shared by all paths: 10 % uniform in the box, 90 % normal around data drawn with probability proportional to
y - min y, with half a length scale as standard deviation. The best proposal of each round is a start; gradient ascent
from all starts of all paths at once leads to the maxima (Hernandez-Lobato et al., 2017).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from pathgp.compute.inputs import Array, read_matrix, read_numbers, real_number, whole_number
from pathgp.compute.memory import spans
from pathgp.compute.random import as_generator
from pathgp.decisions.domain import Constraint, Domain
from pathgp.decisions.top import assign_distinct, top_rows
from pathgp.kernels import Stationary
from pathgp.kernels.expression import leaves
from pathgp.posterior.table import Posterior

# Rows whose paths are evaluated at once.
_BLOCK = 4096
# How much of their past the two moments of Adam keep.
_DECAY = (0.9, 0.999)
# Neighbours of a maximum that are tried if it repeats an earlier point.
_ALTERNATIVES = 64


def maximise_paths(
    post: Posterior,
    bounds: Array | None = None,
    *,
    candidates: Array | None = None,
    choices: Mapping[int, Sequence[float]] | None = None,
    constraint: Constraint | None = None,
    minimise: bool = False,
    which: Sequence[int] | None = None,
    distinct: bool = False,
    avoid: Array | None = None,
    starts: int = 8,
    proposals: int = 2000,
    explore: float = 0.1,
    steps: int = 60,
    learning_rate: float = 0.05,
    generator: torch.Generator | None = None,
) -> tuple[Array, Array]:
    """Return the maximum of every path over a box or a list: inputs (s, d) and values (s,).

    Time O(starts proposals s (n + features)) for the proposals, O(steps starts s (n + features)) for the ascent. The
    thesis uses starts=30, proposals=50_000 and 100 steps on a GPU.

    Args:
        post: a posterior with paths.
        bounds: lower and upper ends of the columns, (2, d). A NumPy array, a list or a tensor; results are of the same
            kind.
        candidates: in place of bounds, inputs (c, d) to choose from.
        choices: columns of the box that take one of a list of values: ``{2: [0, 1, 2]}``. The other columns are
            optimised by gradient ascent; these by trying all values.
        constraint: function of inputs (m, d) that returns m booleans. Points where it is False are rejected.
        minimise: return minima.
        which: numbers of p paths; results are (p, d) and (p,). By default all paths.
        distinct: return no point twice, in favour of the next best ones; candidates must be at least p.
        avoid: inputs (a, d) that must not be returned; implies ``distinct``.
        starts: rounds of proposals, each of which gives one start per path.
        proposals: points of a round.
        explore: share of proposals that are uniform in the box; the others are near good data.
        steps: steps of Adam, with a cosine schedule; 0 returns the best proposals.
        learning_rate: first step size, in units of half a length scale.
        generator: source of the proposals; None draws a fresh seed.
    """
    if (bounds is None) == (candidates is None):
        raise TypeError("give either bounds (2, d) or candidates (c, d)")
    if candidates is not None and choices is not None:
        raise TypeError("choices belong to bounds: leave candidates out that they forbid")
    if not isinstance(post, Posterior):
        raise TypeError(f"maximise_paths takes a Posterior, as gp.condition() returns it, got {type(post).__name__}")
    chosen = read_numbers(range(post.num_samples) if which is None else which, "which", post.num_samples)
    sign = -1.0 if minimise else 1.0
    device, generator = post.system.X.device, as_generator(generator)
    if candidates is not None:
        return _best_candidates(post, candidates, constraint, sign, chosen, distinct or avoid is not None, avoid)
    domain = Domain.read(bounds, choices, constraint, device)
    if len(domain.lower) != post.system.X.shape[1]:
        raise ValueError(f"bounds have {len(domain.lower)} columns, the model was given {post.system.X.shape[1]}")
    search = _Search(post, domain, sign, chosen, generator)
    settings = {"starts": starts, "proposals": proposals}
    starts, proposals = (whole_number(value, name, 1) for name, value in settings.items())
    if not 0.0 <= (explore := real_number(explore, "explore")) <= 1.0:
        raise ValueError(f"explore is a share from 0 to 1, got {explore}")
    X = search.find_starts(starts, proposals, explore)
    X, values = search.climb(X, whole_number(steps, "steps", 0), real_number(learning_rate, "learning_rate"))
    if domain.choices:
        X, values = search.try_choices(X, values, steps, learning_rate)
    if distinct or avoid is not None:
        known = () if avoid is None else domain.keys(read_matrix(avoid, "avoid").X.to(device, torch.float64))
        X, values = search.separate(X, values, set(known))
    else:
        values, best = values.max(1)
        X = X[torch.arange(len(X), device=device), best]
    return domain.to_caller(X), domain.to_caller(sign * values)


class _Search:
    """Starts, gradient ascent and choices for p paths; ``sign`` times a path is maximised."""

    def __init__(
        self, post: Posterior, domain: Domain, sign: float, chosen: Tensor, generator: torch.Generator
    ) -> None:
        self.post, self.domain, self.sign, self.chosen, self.generator = post, domain, sign, chosen, generator
        self.spread = neighbourhood(post, domain)

    @torch.no_grad()
    def find_starts(self, starts: int, proposals: int, explore: float) -> Tensor:
        """The best proposal of every round for every path: (p, starts, d)."""
        centres = self.post.X.to(torch.float64)
        weights = _data_weights(self.post, self.sign)
        found = []
        for _ in range(starts):
            X = self.domain.propose(proposals, centres, weights, self.spread, explore, self.generator)
            found.append(X[top_rows(_path_blocks(self.post, X, self.chosen, self.sign), 1)[1][:, 0]])
        return torch.stack(found, 1)

    def climb(self, X: Tensor, steps: int, rate: float) -> tuple[Tensor, Tensor]:
        """Gradient ascent from X (p, q, d) in the box: the best allowed point of every ascent, and its value (p, q)."""
        free = self.domain.continuous
        best, record = X.clone(), self._evaluate(X)
        if steps == 0 or not bool(free.any()):
            return best, record
        z = torch.zeros_like(X).requires_grad_()
        first, second = torch.zeros_like(X), torch.zeros_like(X)
        lower, upper = ((end - X) / self.spread for end in (self.domain.lower, self.domain.upper))
        for step in range(steps):
            values = self.post.paths_at(X + z * self.spread, self.chosen)
            (slope,) = torch.autograd.grad(self.sign * values.sum(), z)
            slope[..., ~free] = 0.0
            if step:
                _keep_better(best, record, (X + z * self.spread).detach(), self.sign * values.detach(), self.domain)
            # Adam, written out: importing torch.optim takes seconds.
            first.lerp_(slope, 1.0 - _DECAY[0])
            second.lerp_(slope.square(), 1.0 - _DECAY[1])
            direction, spread = (
                moment / (1.0 - decay ** (step + 1)) for moment, decay in zip((first, second), _DECAY, strict=True)
            )
            pace = 0.5 * rate * (1.0 + math.cos(math.pi * step / steps))
            with torch.no_grad():
                z.addcdiv_(direction, spread.sqrt_().add_(1e-8), value=pace)
                z.copy_(torch.minimum(torch.maximum(z, lower), upper))
        last = (X + z * self.spread).detach()
        _keep_better(best, record, last, self._evaluate(last), self.domain)
        # Rounding may have left the box by a last digit.
        return self.domain.clip(best), record

    def try_choices(self, X: Tensor, values: Tensor, steps: int, rate: float) -> tuple[Tensor, Tensor]:
        """All values of the columns with choices, one column after the other, then a second ascent."""
        for column, numbers in self.domain.choices.items():
            for value in numbers:
                changed = X.clone()
                changed[..., column] = value
                _keep_better(X, values, changed, self._evaluate(changed), self.domain)
        return self.climb(X, steps // 2, 0.5 * rate)

    def separate(self, X: Tensor, values: Tensor, taken: set[bytes]) -> tuple[Tensor, Tensor]:
        """The best end of every path (p, d) that is not in ``taken`` and that no earlier path has, and values (p,)."""
        order = values.argsort(1, descending=True).tolist()
        keys = [self.domain.keys(ends) for ends in X]
        chosen, result = [], values.new_empty(len(X))
        for j, ranked in enumerate(order):
            k = next((k for k in ranked if keys[j][k] not in taken), None)
            if k is not None:
                point, result[j], key = X[j, k], values[j, k], keys[j][k]
            else:
                point, result[j] = self._alternative(j, X[j, ranked[0]], taken)
                (key,) = self.domain.keys(point.unsqueeze(0))
            taken.add(key)
            chosen.append(point)
        return torch.stack(chosen), result

    def _alternative(self, j: int, X: Tensor, taken: set[bytes]) -> tuple[Tensor, Tensor]:
        """The best new point for path j near X (d,); a repetition if the domain has no other."""
        weight = torch.ones(1, dtype=torch.float64)
        near = self.domain.propose(_ALTERNATIVES, X.unsqueeze(0), weight, 0.2 * self.spread, 0.1, self.generator)
        with torch.no_grad():
            values = self.sign * self.post.paths_at(near.unsqueeze(0), self.chosen[j : j + 1])[0]
        keys = self.domain.keys(near)
        order: list[int] = values.argsort(descending=True).tolist()
        k = next((k for k in order if keys[k] not in taken), order[0])
        return near[k], values[k]

    @torch.no_grad()
    def _evaluate(self, X: Tensor) -> Tensor:
        values: Tensor = self.sign * self.post.paths_at(X, self.chosen)
        return values


def _keep_better(best: Tensor, record: Tensor, X: Tensor, values: Tensor, domain: Domain) -> None:
    """Write allowed points X (p, q, d) with larger values (p, q) into ``best`` and ``record``."""
    better = (values > record) & domain.allows(X.flatten(0, 1)).view(values.shape)
    best[better], record[better] = X[better], values[better]


def neighbourhood(post: Posterior, domain: Domain) -> Tensor:
    """Half of the shortest length scale of every column (d,), at most half of the box; a tenth of it without one."""
    columns, width = range(len(domain.lower)), domain.width
    spread = torch.full_like(width, torch.inf)
    for kernel, seen in leaves(post.model.kernel, columns):
        if isinstance(kernel, Stationary):
            place = torch.tensor(seen, device=width.device)
            length = kernel.lengthscales(len(seen), width.device).detach().to(torch.float64).expand(len(seen))
            spread[place] = torch.minimum(spread[place], 0.5 * length * post.scaling.scale[place])
    spread = torch.where(spread.isinf(), 0.1 * width, spread)
    return torch.minimum(spread, 0.5 * width)


def _data_weights(post: Posterior, sign: float) -> Tensor:
    """y - min y of the data (n,), or max y - y for minima; equal weights if all y are equal."""
    if post.system.is_complete:
        y = post.training_targets()
    else:
        y = post.mean(post.X).to(torch.float64)
    weights = sign * y - (sign * y).min()
    return weights if bool(weights.max() > 0) else torch.ones_like(weights)


def _path_blocks(post: Posterior, X: Tensor, chosen: Tensor, sign: float) -> Iterator[tuple[Tensor, Tensor]]:
    """Row numbers and values (p, b) of the chosen paths, a block of rows at a time."""
    for rows in spans(len(X), _BLOCK):
        values = sign * post.paths(X[rows])
        yield torch.arange(rows.start, rows.stop), values[chosen.to(values.device)]


@torch.no_grad()
def _best_candidates(
    post: Posterior,
    candidates: Array,
    constraint: Constraint | None,
    sign: float,
    chosen: Tensor,
    distinct: bool,
    avoid: Array | None,
) -> tuple[Array, Array]:
    given = read_matrix(candidates, "candidates", columns=post.system.X.shape[1], like=post.system.X)
    X = given.X.detach()
    ends = torch.stack([X.amin(0), X.amax(0)]) if len(X) else X.new_zeros(2, X.shape[1])
    domain = Domain(ends[0].double(), ends[1].double(), {}, constraint, given.is_numpy)
    allowed = domain.allows(X)
    if distinct:
        known = () if avoid is None else domain.keys(read_matrix(avoid, "avoid").X.to(X.device, torch.float64))
        seen = set(known)
        for row, key in enumerate(domain.keys(X)):
            allowed[row] &= key not in seen
            seen.add(key)
    rows = allowed.nonzero().flatten()
    if len(rows) < (len(chosen) if distinct else 1):
        raise ValueError(f"{len(rows)} candidates are left for {len(chosen)} paths: give more, or fewer paths (which=)")
    count = len(chosen) if distinct else 1
    values, places = top_rows(_path_blocks(post, X[rows], chosen, sign), count)
    picked = [place or 0 for place in assign_distinct(places.tolist())] if distinct else places[:, 0].tolist()
    index = torch.tensor(picked, device=places.device)
    values = values.gather(1, (places == index.unsqueeze(1)).long().argmax(1, keepdim=True))[:, 0]
    return given.to_caller(X[rows[index]]), given.to_caller(sign * values)
