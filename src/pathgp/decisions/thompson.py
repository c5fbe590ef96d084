"""The maximum of every posterior path: one step of Thompson sampling in batches.

    x_j = argmax_x f_j(x),   f_1, ..., f_s posterior paths

Paths are smooth functions with many local maxima. As in section 3.3.2 of the thesis every path is evaluated at many
proposals, shared by all paths: some uniform in the box, the others normal around good data, with up to half a length
scale as standard deviation. The best proposal of each round is a start; gradient ascent from all starts of all paths at
once leads to the maxima (Hernandez-Lobato et al., 2017). The thesis draws data with probability proportional to
y - min y; here the probability is proportional to 1 / rank, which does not depend on the worst values, and the standard
deviation of every proposal is divided by a factor from 1 to 32: in many columns only points close to a good one are
better than it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from pathgp.compute.inputs import Array, read_matrix, read_numbers, real_number, whole_number
from pathgp.compute.random import as_generator
from pathgp.decisions.domain import Constraint, Domain, read_candidates
from pathgp.decisions.search import PathSearch, path_blocks
from pathgp.decisions.top import assign_distinct, top_rows
from pathgp.posterior.table import Posterior


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
    min_gain: float = 0.0,
    starts: int = 4,
    proposals: int = 250,
    explore: float = 0.1,
    steps: int = 30,
    learning_rate: float = 0.2,
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
        min_gain: with ``distinct``, a maximum is known if its path equals the posterior mean there, up to this share of
            the standard deviation of y. An evaluation there would give no information, so that nine of ten such paths
            return the end of the ascent from a uniform point instead. 0 returns all maxima.
        starts: rounds of proposals, each of which gives one start per path; another start is uniform in the box.
        proposals: points of a round.
        explore: share of proposals that are uniform in the box; the others are near good data.
        steps: steps of Adam; two thirds of them from the best two starts of every path only. 0 returns the best
            proposals.
        learning_rate: first step size, in units of half a length scale.
        generator: source of the proposals; None draws a fresh seed.
    """
    if (bounds is None) == (candidates is None):
        raise TypeError("give either bounds (2, d) or candidates (c, d)")
    if candidates is not None and choices is not None:
        raise TypeError("choices belong to bounds: leave candidates out that they forbid")
    if not isinstance(post, Posterior):
        raise TypeError(f"maximise_paths takes a Posterior, as gp.condition() returns it, got {type(post).__name__}")
    if not post.has_paths:
        reason = post.report.no_paths or "it was conditioned with samples=0"
        raise ValueError(f"maximise_paths needs a posterior with paths, and this one has none: {reason}")
    paths = read_numbers(range(post.num_samples) if which is None else which, "which", post.num_samples)
    if not len(paths):
        raise ValueError("which is empty: name at least one path, or leave it out for all")
    settings: dict[str, Any] = {"min_gain": min_gain, "starts": starts, "proposals": proposals}
    settings = read_search(settings | {"explore": explore, "steps": steps, "learning_rate": learning_rate})
    sign = -1.0 if minimise else 1.0
    device, generator = post.system.X.device, as_generator(generator)
    if candidates is not None:
        return _best_candidates(post, candidates, constraint, sign, paths, distinct or avoid is not None, avoid)
    domain = Domain.read(bounds, choices, constraint, device)
    if len(domain.lower) != post.system.X.shape[1]:
        raise ValueError(f"bounds have {len(domain.lower)} columns, the model was given {post.system.X.shape[1]}")
    search = PathSearch(post, domain, sign, paths, generator)
    X = search.find_starts(settings["starts"], settings["proposals"], settings["explore"])
    X, values = search.ascend(X, settings["steps"], settings["learning_rate"])
    if domain.choices:
        X, values = search.try_choices(X, values, settings["steps"], settings["learning_rate"])
    if distinct or avoid is not None:
        X, values = search.choose_distinct(X, values, _read_avoid(avoid, domain, device), settings["min_gain"])
    else:
        values, best = values.max(1)
        X = X[torch.arange(len(X), device=device), best]
    return domain.to_caller(X), domain.to_caller(sign * values)


def read_search(options: Mapping[str, Any]) -> dict[str, Any]:
    """Check the values of options of the search of `maximise_paths`; those that are left out are not checked."""
    values = dict(options)
    for name, least in {"starts": 1, "proposals": 1, "steps": 0}.items():
        if name in values:
            values[name] = whole_number(values[name], name, least)
    for name in ("min_gain", "explore", "learning_rate"):
        if name in values:
            values[name] = real_number(values[name], name)
    if (learning_rate := values.get("learning_rate", 1.0)) <= 0.0:
        raise ValueError(f"learning_rate must be positive, got {learning_rate}")
    if (min_gain := values.get("min_gain", 0.0)) < 0.0:
        raise ValueError(f"min_gain must not be negative, got {min_gain}")
    if not 0.0 <= (explore := values.get("explore", 0.0)) <= 1.0:
        raise ValueError(f"explore is a share from 0 to 1, got {explore}")
    return values


@torch.no_grad()
def _best_candidates(
    post: Posterior,
    candidates: Array,
    constraint: Constraint | None,
    sign: float,
    paths: Tensor,
    distinct: bool,
    avoid: Array | None,
) -> tuple[Array, Array]:
    given = read_candidates(candidates, post.system.X.shape[1], post.system.X)
    X = given.X.detach()
    domain = Domain.of_candidates(X, constraint, given.is_numpy)
    allowed = domain.allows(X)
    if distinct:
        seen = _read_avoid(avoid, domain, X.device)
        for row, key in enumerate(domain.keys(X)):
            allowed[row] &= key not in seen
            seen.add(key)
    rows = allowed.nonzero().flatten()
    if len(rows) < (len(paths) if distinct else 1):
        raise ValueError(f"{len(rows)} candidates are left for {len(paths)} paths: give more, or fewer paths (which=)")
    count = len(paths) if distinct else 1
    values, places = top_rows(path_blocks(post, X[rows], paths, sign), count)
    picked = [place or 0 for place in assign_distinct(places.tolist())] if distinct else places[:, 0].tolist()
    index = torch.tensor(picked, device=places.device)
    values = values.gather(1, (places == index.unsqueeze(1)).long().argmax(1, keepdim=True))[:, 0]
    return given.to_caller(X[rows[index]]), given.to_caller(sign * values)


def _read_avoid(avoid: Array | None, domain: Domain, device: torch.device) -> set[bytes]:
    """The keys of the points (a, d) that must not be returned."""
    if avoid is None:
        return set()
    return set(domain.keys(read_matrix(avoid, "avoid", columns=len(domain.lower)).X.to(device, torch.float64)))
