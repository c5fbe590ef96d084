"""The content of the page of a posterior of rows."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pathgp.compute.inputs import Array, read_matrix, read_vector
from pathgp.html.accuracy import Comparison, Content
from pathgp.html.facts import Facts, join_names, kernel_in_words, random_subset, read_names, to_numpy
from pathgp.html.inputs import effects_section, rank_inputs, relevance_section
from pathgp.html.numbers import count, number
from pathgp.posterior.table import Posterior

# Held-out rows that are predicted: more would change no digit on the page. Fewer when each needs a solve.
_MOST_ROWS, _MOST_SOLVES = 10_000, 300


def table_content(
    post: Posterior, X_test: Array | None, y_test: Array | None, names: Sequence[str] | None, target: str
) -> Content:
    """Predict held-out rows, or every row from the others, and show the function along its inputs."""
    facts = Facts(post, read_names(names, post.report.columns, "input", "x"), target)
    comparison, reason = _compare(facts, X_test, y_test)
    ranking = rank_inputs(facts)
    sections = [*relevance_section(facts, ranking), effects_section(facts, ranking)]
    size = f"{count(post.report.rows, 'row')}, {count(facts.columns, 'input')}"
    return Content(size, _sentences(facts), comparison, reason, sections, _variance_source(facts), facts.names)


def _sentences(facts: Facts) -> list[str]:
    """The problem, the prior, the noise and the units."""
    post, target = facts.post, facts.target
    inputs = f"from {join_names(facts.names)}" if facts.columns <= 12 else f"from {facts.columns} inputs"
    noise = f"The noise has standard deviation {number(post.noise_std)} in the units of {target}"
    if post.system.deviation.ndim:
        noise += ", on top of the known noise of every row"
    units = ""
    if post.model.standardise:
        units = " The model standardises inputs and target; length scales are in these units."
    return [
        f"A Gaussian process predicts {target} {inputs}, given {count(post.report.rows, 'row')} of data.",
        f"Its prior: {kernel_in_words(post.model.kernel, facts.names)}. {noise}.{units}",
    ]


def _compare(facts: Facts, X_test: Array | None, y_test: Array | None) -> tuple[Comparison | None, str]:
    """Predict held-out rows, or every row from the others; otherwise return the reason why not."""
    if (X_test is None) != (y_test is None):
        missing, given = ("X_test", "y_test") if X_test is None else ("y_test", "X_test")
        raise ValueError(f"{given} comes without {missing}: give both, or neither for leave-one-out")
    if X_test is not None:
        return _held_out(facts.post, X_test, y_test), ""
    if not facts.has_targets:
        return None, "the posterior was saved without its targets (data=False). Give X_test and y_test."
    try:
        loo = facts.post.leave_one_out()
    except ValueError as error:
        return None, f"{error}; or give X_test, y_test."
    how = (
        "No held-out data were given: every row is predicted from all the others (leave-one-out; variances "
        f"{loo.method}). The hyperparameters were chosen with all rows, so that new data may be harder to predict."
    )
    caveat = ""
    if facts.post.has_factor and not facts.post.report.solution.converged:
        caveat = "Accuracy is shown for an exact solution (leave-one-out), which this posterior has not reached."
    y, rows = facts.targets(), "rows left out one by one"
    return Comparison(y, to_numpy(loo.means), to_numpy(loo.variances), rows, len(y), how, caveat), ""


def _held_out(post: Posterior, X_test: Array, y_test: Array) -> Comparison:
    X = read_matrix(X_test, "X_test", columns=post.report.columns, like=post.system.X).X
    y = read_vector(y_test, len(X), "y_test", like=post.system.X)
    if not len(y):
        raise ValueError("X_test has no rows: leave X_test and y_test out for leave-one-out")
    most = _MOST_ROWS if post.has_paths or post.has_factor else _MOST_SOLVES
    rows = torch.from_numpy(random_subset(len(y), most)).to(X.device)
    with torch.no_grad():
        mean, variance = post.mean(X[rows]), post.variance(X[rows], noise=True)
    how = "The model has not seen these rows; predictive variances include the noise."
    if post.system.deviation.ndim:
        how = "The model has not seen these rows; variances include its own noise, not the known noise of single rows."
    return Comparison(to_numpy(y[rows]), to_numpy(mean), to_numpy(variance), "held-out rows", len(y), how)


def _variance_source(facts: Facts) -> str:
    report = facts.post.report
    if not facts.post.has_paths:
        reason = f" ({report.no_paths})" if report.no_paths else ""
        return f"Variances are exact, from further solves: there are no sample paths{reason}."
    accuracy = f"the relative error of a standard deviation is about {100 * report.std_error:.0f} % or less"
    if facts.has_targets:
        return f"Variances come from {report.samples} paths, corrected by the nearest observations: {accuracy}."
    return f"Variances come from {report.samples} paths alone, as the targets are not in the file: {accuracy}."
