"""Figure 4.1: full-batch descent on the primal and on the dual objective."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from benchmarks.thesis.descent import Curve, Problem, draw_curves
from benchmarks.thesis.size import Size

TITLE = "Primal and dual objective"
TEXT = """\
Full-batch gradient descent on `pol`, computed exactly in the eigenbasis of K, where each step multiplies the error by a
known factor. Steps are given as βn, the step size times the number of rows.

The posterior mean is K(·, X) a with weights a; those of the exact mean are a*. The K-norm, ‖a‖² = aᵀKa, measures the
function everywhere. The K²-norm, ‖a‖² = aᵀK²a = |Ka|², measures its values at the training inputs.

The primal objective is stable with a step of 0.1 and diverges at 1; the dual objective is stable at 50. With equal
steps of 0.1 the primal is first ahead in the K²-norm, and the dual in the K-norm."""


def draw(path: Path, size: Size) -> dict[str, Any]:
    """Full-batch descent has a closed form: in the eigenbasis of K the error shrinks by (1 - step c)^t."""
    problem = Problem.load(size)
    n, noise = len(problem.b), problem.data.noise**2
    values, vectors = torch.linalg.eigh(problem.K)
    values.clamp_min_(0.0)
    start = vectors.T @ -problem.exact
    times = torch.logspace(0, 5, 60, dtype=torch.float64).round().unique()
    curves: dict[str, Curve] = {}
    for name, curvature in (("primal", values * (values + noise)), ("dual", values + noise)):
        for step in (0.01, 0.1, 1.0) if name == "primal" else (0.1, 1.0, 10.0, 50.0):
            factor = 1.0 - step / n * curvature
            curve: Curve = []
            for t in times:
                wrong = vectors @ (factor.pow(int(t)) * start)
                curve.append((float(t), *problem.errors(problem.exact + wrong)))
            curves[f"{name}, βn = {step:g}"] = curve
    styles = {name: ("--" if name.startswith("primal") else "-") for name in curves}
    return draw_curves(curves, path, problem, "gradient steps", styles)
