"""The page of an optimisation: `ThompsonSampler.to_html`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pathgp.decisions.history import Round
from pathgp.html.charts import Axis, Chart
from pathgp.html.facts import join_names, read_names, to_numpy
from pathgp.html.markup import (
    Html,
    Section,
    Verdict,
    chart_grid,
    document,
    figure,
    paragraph,
    table,
    tile_list,
    verdict_list,
)
from pathgp.html.numbers import count, number, seconds
from pathgp.html.page import describe_versions
from pathgp.html.solver import solve_verdict

# Rows of the table of the best observations, inputs that it shows, and rounds of the table of rounds.
_BEST, _INPUTS, _ROUNDS = 10, 8, 30
# Rounds without a better value after which the page says so.
_IDLE = 3


def write_optimisation(
    sampler: Any,
    path: str | os.PathLike[str],
    names: Sequence[str] | None = None,
    target: str = "y",
    title: str | None = None,
) -> None:
    """Write the page of a `ThompsonSampler`: its best observations, its course and the model."""
    inputs = read_names(names, len(sampler.domain.lower), "input", "x")
    sections = [_summary(sampler, inputs, target), _course(sampler, target), _best(sampler, inputs, target)]
    sections += [_rounds(sampler), _model(sampler)]
    size = [count(len(sampler.y), "evaluation"), count(len(sampler.history), "round"), count(len(inputs), "input")]
    lead = f"{size[0]} in {size[1]}, {size[2]}."
    goal = "minimum" if sampler.minimise else "maximum"
    heading = f"Search for the {goal} of {target}" if title is None else str(title)
    Path(path).write_text(document(heading, lead, sections, describe_versions()), encoding="utf-8")


def _summary(sampler: Any, names: list[str], target: str) -> Section:
    rounds, best = sampler.history.rounds, sampler.best
    goal = "smallest" if sampler.minimise else "largest"
    place = join_names([f"{name} {number(value, 4)}" for name, value in zip(names, to_numpy(best.X), strict=True)])
    words = f"The {goal} {target} so far is {number(best.y, 5)}, at {place}."
    failed = sum(each.failed for each in rounds)
    since = _rounds_with_best(sampler)
    gain, first = abs(best.y - since[0].best), "first round" + " with a value" * (len(since) < len(rounds))
    comparison = f"{number(gain, 3)} better than after the {first}" if len(since) > 1 else "after one round"
    tiles = [
        (f"best {target}", number(best.y, 5), comparison),
        ("evaluations", f"{len(sampler.y):,}", f"{count(len(sampler.pending), 'input')} without a value yet"),
        ("time", seconds(rounds[-1].seconds), "evaluations of the function included"),
    ]
    idle = _idle_rounds(sampler)
    verdicts = [Verdict(True, "The last round found a better value: further rounds may, too.")]
    if len(rounds) == 1:
        verdicts = [Verdict(None, "One round so far: whether further rounds find better values is not known yet.")]
    elif idle:
        text = f"No better value for {count(idle, 'round')}."
        more = " More rounds may still help; other bounds or another model may help more." if idle >= _IDLE else ""
        verdicts = [Verdict(None, text + more)]
    if at_ends := _inputs_at_ends(sampler, names):
        advice = "Values beyond it may be better: widen the bounds if they allow it."
        verdicts.append(Verdict(False, f"The best point lies on an end of {join_names(at_ends)}. {advice}"))
    if failed:
        text = f"{count(failed, 'evaluation')} failed: these inputs are outside of the model and not asked for again."
        verdicts.append(Verdict(False, text))
    return Section("summary", "Summary", [paragraph(words), tile_list(tiles), verdict_list(verdicts)])


def _rounds_with_best(sampler: Any) -> list[Round]:
    """The rounds from the first finite value on."""
    return [each for each in sampler.history.rounds if each.evaluations]


def _idle_rounds(sampler: Any) -> int:
    """Rounds since the best value changed."""
    best = [each.best for each in _rounds_with_best(sampler)]
    return sum(value == best[-1] for value in best) - 1


def _inputs_at_ends(sampler: Any, names: list[str]) -> list[str]:
    """The continuous inputs of the best point that are equal to an end of the box."""
    domain, X = sampler.domain, torch.as_tensor(sampler.best.X).to(sampler.domain.lower)
    at_end = (domain.lower == X) | (domain.upper == X)
    return [name for name, is_end in zip(names, (at_end & domain.continuous).tolist(), strict=True) if is_end]


def _course(sampler: Any, target: str) -> Section:
    rounds = _rounds_with_best(sampler)
    best, batch = (np.array([getattr(each, name) for each in rounds]) for name in ("best", "batch_best"))
    drawings: list[Html] = []
    for name in ("evaluations", "seconds"):
        places = np.array([getattr(each, name) for each in rounds], dtype=np.float64)
        # The best value stays until the next round.
        x, y = np.repeat(places, 2)[1:], np.repeat(best, 2)[:-1]
        is_known = np.isfinite(batch)
        finding = f"From {number(best[0], 4)} to {number(best[-1], 4)} after {number(places[-1])} {name}."
        title = f"Best {target} against {name}"
        axes = Axis.around(places, zero=True, label=name), Axis.around(best, batch[is_known], label=target)
        chart = Chart(f"best-{name}", title, finding, *axes)
        chart.dots(places[is_known], batch[is_known], "accent")
        chart.line(x, y, "accent")
        drawings.append(figure(title, " Dots: the best value of every round.", chart.svg()))
    return Section("course", "Course", [chart_grid(drawings)])


def _best(sampler: Any, names: list[str], target: str) -> Section:
    X, y = to_numpy(sampler.X), to_numpy(sampler.y)
    order = np.argsort(y if sampler.minimise else -y, kind="stable")[:_BEST]
    shown = names[:_INPUTS]
    rows = [[f"{place + 1}", number(y[row], 5), *(number(value, 4) for value in X[row, :_INPUTS])]
            for place, row in enumerate(order)]  # fmt: skip
    note = f" The table shows {_INPUTS} of {len(names)} inputs." if len(names) > len(shown) else ""
    words = paragraph(f"The {len(order)} best evaluations.{note}")
    return Section("best", "Best evaluations", [words, table(["rank", target, *shown], rows, "figures")])


def _rounds(sampler: Any) -> Section:
    rounds = sampler.history.rounds
    first = max(0, len(rounds) - _ROUNDS)
    rows = []
    for place, each in enumerate(rounds[first:], first + 1):
        best, batch = (number(y, 5) if np.isfinite(y) else "none" for y in (each.best, each.batch_best))
        rows.append([f"{place}", f"{each.evaluations:,}", best, batch, f"{each.failed}", seconds(each.seconds)])
    head = ["round", "evaluations", "best", "best of the round", "failed", "time"]
    words = [paragraph(f"The last {_ROUNDS} of {len(rounds)} rounds.")] if first else []
    return Section("rounds", "Rounds", [*words, table(head, rows, "figures")], flows=True)


def _model(sampler: Any) -> Section:
    rows = [[name, ", ".join(number(value) for value in values.flatten().tolist()[:_INPUTS])]
            for name, values in sampler.gp.hyperparameters().items()]  # fmt: skip
    body = [paragraph(f"Kernel: {sampler.gp.kernel!r}."), table(["hyperparameter", "in the model's units"], rows)]
    post = sampler.posterior
    if post is not None:
        body.append(verdict_list([solve_verdict(post.report)]))
    return Section("model", "Model", body, flows=True)
