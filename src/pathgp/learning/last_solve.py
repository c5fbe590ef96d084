"""The posterior of a fit: on all rows, on as many as a time limit allows, or on those of an interrupted step."""

from __future__ import annotations

import copy
import sys
import warnings
from contextlib import suppress
from dataclasses import replace
from typing import Any

from torch import Tensor

from pathgp.learning.estimators import Iterative, State
from pathgp.learning.loop import Fit
from pathgp.learning.pace import TIME_LIMIT
from pathgp.learning.policy import GUARD_ROWS
from pathgp.learning.timing import FitCosts, describe_seconds
from pathgp.learning.vecchia import VecchiaLikelihood
from pathgp.posterior.conditioning import SolveRequest
from pathgp.posterior.convergence import ConvergenceWarning

# With a time limit, a solve on this part of the rows comes first. It costs a sixteenth and is the fallback.
_FALLBACK_PART = 4
# More rows than those of the fallback are worth another solve from this factor on.
_WORTHWHILE = 1.2
# Parts of the time limit: kept for what follows a solve, and granted to a first solve that does not end in time.
_MARGIN, _OVERRUN = 0.02, 0.15
# A product that takes more seconds than this is announced after Ctrl-C.
_ANNOUNCE_FROM = 1.0


def solve_last(running: Fit) -> Any:
    """The posterior at the final hyperparameters, from the last solutions of the loop if its probes are the samples.

    With a time limit: on the largest number of rows whose solve ends in time. If these are more than any step has used,
    a solve on fewer rows comes first. It shows how long the other one takes, and is the result if that one does not
    converge in time. A grid is always solved as a whole.
    """
    state, no_paths = _draws(running)
    if running.pace.deadline is None or running.model.is_grid:
        return _solve(running, state, None, no_paths=no_paths)
    pace, compute = running.pace, running.compute
    costs, largest = pace.observed_costs(running), running.max_solved_rows
    count = compute.on_main_process(lambda: pace.rows_in_time(running, costs))
    first = min(count, max(largest, count // _FALLBACK_PART, GUARD_ROWS))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        posterior = _solve_subset(running, state, first, no_paths, _OVERRUN)
        if first < count:
            state = replace(state, rows=running.first_rows(first), solutions=posterior.solutions.to(running.data.dtype))
            costs = _observe(costs, posterior.report.solution, first, is_new=first > largest)
            count = compute.on_main_process(lambda: pace.rows_in_time(running, costs))
        if count >= _WORTHWHILE * first:
            larger = _solve_subset(running, state, count, no_paths)
            if larger.report.solution.converged or not posterior.report.solution.converged:
                posterior = larger
            else:
                late = f"the solve on {count:,} rows did not end in time"
                posterior.report = posterior.report.with_note(late)
    posterior.report.warn_unless_converged()
    return posterior


def confirm_last(running: Fit, can_announce: bool) -> Any:
    """The posterior of the last whole step on the rows of that step; None if it has no solutions.

    One product confirms the residuals. After steps by Vecchia's likelihood, which have no solutions, 1,000 rows are
    solved for. ``can_announce``: say so on standard error if it takes long.
    """
    # Ranks are interrupted at different places, and do not meet again for a product.
    is_alone = running.compute.group is None
    is_local = isinstance(running.estimator, VecchiaLikelihood)
    is_pathwise = isinstance(running.estimator, Iterative) and running.estimator.pathwise
    if not ((is_pathwise or is_local) and is_alone):
        return None
    step, settings = running.history[-1], running.options.settings
    count = min(step.rows, GUARD_ROWS) if is_local else step.rows
    if step.solver:
        settings = replace(settings, max_epochs=1.0)
    if can_announce and running.pace.costs is not None:
        costs = running.pace.observed_costs(running)
        seconds = costs.rest(count, is_last=True) + costs.solve(count, 1.0)
        if seconds > _ANNOUNCE_FROM:
            words = f"one product confirms step {step.step}, about {describe_seconds(seconds)}"
            print(f"finishing: {words}; press Ctrl-C again to stop now", file=sys.stderr, flush=True)
    # What ended the fit may also prevent this product.
    with warnings.catch_warnings(), suppress(Exception):
        warnings.simplefilter("ignore", ConvergenceWarning)
        state = _draws(running)[0] if is_local else running.state
        posterior = _solve(running, state, running.first_rows(count), settings=settings, deadline=None)
        return _describe_subset(posterior, running, "interrupted")
    return None


def _draws(running: Fit) -> tuple[State, str]:
    """The draws of the loop with their solutions, or new draws; and why there are no paths."""
    estimator, state, options = running.estimator, running.state, running.options
    is_pathwise = isinstance(estimator, Iterative) and estimator.pathwise and estimator.samples == options.samples
    if is_pathwise and state.solutions is not None:
        return (state if options.warm_start else replace(state, solutions=None)), ""
    state, no_paths = State(), ""
    try:
        draws = Iterative(True, options.samples, options.features, True)
        draws.draw(running.model, running.data, state, running.generator)
    except (NotImplementedError, ValueError) as error:
        # Learned values may be out of reach of the features; the fit is not lost for that.
        no_paths = str(error)
    return state, no_paths


def _solve_subset(running: Fit, state: State, count: int, no_paths: str, overrun: float = -_MARGIN) -> Any:
    """The posterior given the first ``count`` rows of the random order.

    The solve ends at the deadline, plus ``overrun`` times the limit. A small one, which takes a second at most, always
    comes to its end.
    """
    pace = running.pace
    assert pace.deadline is not None
    deadline = None if count <= GUARD_ROWS else pace.deadline + overrun * pace.limit
    posterior = _solve(running, state, running.first_rows(count), no_paths=no_paths, deadline=deadline)
    return _describe_subset(posterior, running, TIME_LIMIT)


def _solve(running: Fit, state: State, rows: Tensor | None, no_paths: str = "", **options: Any) -> Any:
    """A posterior with a model of its own; the copies of model and prior draws belong together.

    ``rows``: of the data, None for all.  ``options``: ``settings`` and ``deadline`` of the solve.
    """
    prior = None if state.prior is None else state.prior.follow(running.generator)
    model, prior = copy.deepcopy((running.model, prior))
    model.requires_grad_(False)
    data, state = running.data, replace(state)
    draws = data.y.new_empty(len(data.y), 0, dtype=data.dtype) if state.draws is None else state.draws
    if rows is not None or state.rows is not None:
        state.restrict_rows(rows, len(data.y))
    if rows is not None:
        data, draws = data.subset(rows), draws[rows]
    options = {"settings": running.options.settings, "x0": state.solutions, **options}
    request = SolveRequest(generator=running.generator, seed=running.seed, no_paths=no_paths, **options)
    return model.make_posterior(data, prior, draws, request)


def _describe_subset(posterior: Any, running: Fit, reason: str) -> Any:
    """Record in the report that the posterior is conditioned on a subset of the rows, if it is."""
    n = len(running.data.y)
    if posterior.report.rows < n:
        posterior.report = replace(posterior.report, all_rows=n, subset_reason=reason)
    return posterior


def _observe(costs: FitCosts, solution: Any, rows: int, is_new: bool) -> FitCosts:
    """The costs corrected by one more solve; ``is_new``: it had no start on these rows, and shows how many epochs such
    a solve takes.
    """
    observed = costs.observe_solves([(rows, solution.epochs, solution.seconds, solution.method)])
    return observed if is_new else replace(observed, first_epochs=costs.first_epochs)
