"""The summary of a page: the model in sentences, key numbers and verdicts."""

from __future__ import annotations

from collections.abc import Sequence

from pathgp.html.accuracy import Comparison
from pathgp.html.learning import fit_verdict
from pathgp.html.markup import Section, Verdict, paragraph, tile_list, verdict_list
from pathgp.html.solver import certificate, solve_verdict
from pathgp.learning.report import FitReport
from pathgp.posterior.grid import GridPosterior
from pathgp.posterior.table import Posterior


def summary_section(
    post: Posterior | GridPosterior,
    target: str,
    sentences: Sequence[str],
    comparison: Comparison | None,
    reason: str,
    fit: FitReport | None,
) -> Section:
    """Sentences about the model, key numbers and verdicts. reason: why there is no comparison with observations."""
    words, verdicts, body = list(sentences), [solve_verdict(post.report)], []
    if comparison is None:
        verdicts.append(Verdict(None, f"The accuracy is not known: {reason}"))
    else:
        words.append(comparison.sentence(target))
        if not comparison.is_constant and comparison.r2 <= 0:
            advice = "Check kernel, length scales and noise, or learn them with fit."
            verdicts.append(Verdict(False, f"It predicts no better than the average of {target}. {advice}"))
        verdicts.append(comparison.calibration())
        if comparison.caveat:
            verdicts.append(Verdict(False, comparison.caveat))
        body.append(tile_list(comparison.tiles()))
    if fit is not None:
        verdicts.append(fit_verdict(fit))
    verdicts.append(Verdict(None, certificate(post.report)))
    return Section("summary", "Summary", [*map(paragraph, words), *body, verdict_list(verdicts)])
