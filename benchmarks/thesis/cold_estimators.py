"""How many epochs alternating projections need from zero, with the standard and with the pathwise estimator.

    python -m benchmarks.thesis.cold_estimators [SET ...] [--rows 500] [--steps 100] [--every 10] [--max-epochs 100000]

Section 5.2 of the thesis: the pathwise estimator alone makes greedy AP 5.4 times as fast. Here every solve runs to the
tolerance (the rows of table 5.1 end at 500 epochs), at steps of one trajectory, with the thesis's block sizes scaled to
the number of rows. ``expected`` is the number of iterations up to a constant that both estimators share, by a model in
which an iteration reduces the residual along an eigenvector of H in proportion to its eigenvalue: white probes have
equal parts along all of them, probes from the prior have parts in proportion to the eigenvalue, and the tolerance is
relative to the whole.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator

import torch
from torch import Tensor

from benchmarks.common.options import parse
from benchmarks.common.recording import Rows, device_name, merge, table
from benchmarks.common.uci import Regression, uci
from benchmarks.thesis.learning_fits import TOL, learn
from benchmarks.thesis.table_5_1 import initial, move
from benchmarks.thesis.traces import FEATURES, SAMPLES
from pathgp import GP, solvers
from pathgp.data.observations import Observations
from pathgp.learning.estimators import Iterative, State
from pathgp.operators import KernelOperator

# The thesis's blocks of 1,000 rows for 13,500.
BLOCK_SHARE = 1000 / 13_500
KINDS = ("standard", "pathwise")
SELECTIONS = ("greedy", "shuffled")
KEY = ("set", "n", "step", "selection", "estimator")


def right_hand_sides(model: GP, observed: Observations, pathwise: bool, seed: int) -> Tensor:
    """Fresh right-hand sides of an estimator (n, 64), without that of the mean."""
    estimator, state = Iterative(pathwise, SAMPLES, FEATURES, False), State()
    estimator.draw(model, observed, state, torch.Generator().manual_seed(seed))
    system = estimator.system(model, observed, state)
    B = system.targets[:, 1:]
    return B + system.deviation.detach() * system.noise_draws if system.noise_draws.shape[1] else B


def expected_iterations(values: Tensor, pathwise: bool) -> float:
    """The t with sum_i w_i exp(-2 values_i t) = TOL^2 sum_i w_i, for w = values (pathwise) or 1 (standard)."""
    weights = values if pathwise else torch.ones_like(values)
    low, high = 0.0, 50.0 / float(values.min())
    for _ in range(100):
        t = 0.5 * (low + high)
        left = float((weights * torch.exp(-2.0 * values * t)).sum() / weights.sum())
        low, high = (t, high) if left > TOL**2 else (low, t)
    return high


def measure(data: Regression, options: argparse.Namespace) -> Iterator[Rows]:
    """The rows of one step after the other, by estimator and selection."""
    _, report = learn(data, options.steps)
    model = initial(data).working_copy(data.X.device)
    observed = model.prepare_data(data.X.to(torch.float64), data.y.to(torch.float64))
    for step in range(options.every - 1, options.steps, options.every):
        rows = []
        move(model, report.history[step].values)
        noise = float(model.noise.detach())
        H = KernelOperator(model.kernel, observed.X, model.noise.detach().to(observed.X.device))
        eigenvalues = torch.linalg.eigvalsh(H.block(torch.arange(H.shape[0], device=H.device)))
        for kind in KINDS:
            B = right_hand_sides(model, observed, kind == "pathwise", step)
            expected = expected_iterations(eigenvalues, kind == "pathwise")
            for selection in SELECTIONS:
                solver = solvers.AP(block_size=max(8, math.ceil(BLOCK_SHARE * len(B))), selection=selection)
                limits = {"tol": TOL, "max_epochs": options.max_epochs, "rule": "average"}
                solution = solver.solve(H, B, generator=torch.Generator().manual_seed(step), **limits)
                about = {"set": data.name, "n": len(B), "step": step, "selection": selection, "estimator": kind}
                found = {
                    "epochs": solution.epochs,
                    "status": solution.status.name,
                    "noise": noise,
                    "expected": expected,
                }
                rows.append(about | found)
                print(rows[-1], flush=True)
        yield rows


def summarise(rows: Rows) -> Rows:
    """Epochs of all measured steps together, and their ratio."""
    lines = []
    for name, n, selection in dict.fromkeys((row["set"], row["n"], row["selection"]) for row in rows):
        mine = [row for row in rows if (row["set"], row["n"], row["selection"]) == (name, n, selection)]
        totals = [sum(row["epochs"] for row in mine if row["estimator"] == kind) for kind in KINDS]
        line = {"set": name, "n": n, "selection": selection, "standard": totals[0], "pathwise": totals[1]}
        line["ratio"] = totals[0] / totals[1]
        line["cut off"] = sum(row["status"] != "CONVERGED" for row in mine)
        steps = [sum(row["expected"] for row in mine if row["estimator"] == kind) for kind in KINDS]
        line["expected ratio"] = steps[0] / steps[1]
        lines.append(line | {"last noise": mine[-1]["noise"]})
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="*", default=["pol", "elevators"])
    parser.add_argument("--rows", type=int, default=500, help="training rows; 0 takes all")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--every", type=int, default=10, help="measure one step in this number")
    parser.add_argument("--max-epochs", type=float, default=100_000)
    options = parse(parser, sets=["elevators"], rows=60, steps=2, every=2, max_epochs=50)
    name = f"cold_estimators_{device_name()}"
    rows: Rows = []
    for each in options.sets:
        for step_rows in measure(uci(each, device=device_name(), rows=options.rows or None), options):
            rows += step_rows
            merge(name, KEY, step_rows, lambda rows: {"summary": summarise(rows)}, tol=TOL)
    print(table(summarise(rows)))


if __name__ == "__main__":
    main()
