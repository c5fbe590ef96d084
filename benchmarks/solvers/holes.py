"""Preconditioners of solves on grids with holes: whole grid, blocks, low rank, and none.

    python -m benchmarks.solvers.holes [NAME ...] [--cut 400] [--columns 11] [--limit 500] [--device cpu]

The fields are those of table_6_2.py and the learning curves of MiniBooNE, at hyperparameters that are typical of fits,
with more and less noise, or with fewer and more missing cells. *wide*: all cells in a rectangle, the middle of every
side, are missing too. Right-hand sides are the values and noise, solved to 0.01 from zero. *holes*: the average
variance of a hole given a few observed cells near it, relative to the noise, by which CG chooses its preconditioner.
`Auto` tries one column first if there are many, and may choose another one. The file keeps the rows of earlier runs.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from benchmarks.common.options import parse
from benchmarks.common.recording import device_name, merge, seconds, table
from benchmarks.thesis import lcbench_curves
from benchmarks.thesis import table_6_2 as climate
from pathgp import kernels
from pathgp.operators import LatentKroneckerOperator
from pathgp.operators.grid_inverse import hole_variance
from pathgp.solvers import CG, Auto, GridBlocks, GridInverse, RandomlyPivotedCholesky, Solver
from pathgp.solvers.cg import choose_preconditioner

TOL = 0.01
WAYS: dict[str, Solver] = {
    "whole grid": CG(GridInverse()),
    "blocks": CG(GridBlocks()),
    "factor": CG(RandomlyPivotedCholesky()),
    "none": CG(None),
    "Auto": Auto(),
}
# Share held out, and length scales by side (of the period last, where there is one) with the noise behind them.
SETTINGS: dict[str, list[tuple[float, tuple[float, ...]]]] = {
    "generated": [(0.1, (0.52, 0.255, 0.63, 0.0975)), (0.5, (0.52, 0.255, 0.63, 0.0975))],
    "era5_uk_t2m": [(0.1, (0.5, 0.5, 1.0, 0.1)), (0.5, (0.3, 0.3, 1.0, 0.05))],
    "pacific_sst": [(0.1, (0.3, 0.5, 1.0, 0.1)), (0.5, (0.3, 0.5, 1.0, 0.1))],
    "colorado_monthly_met": [(0.1, (0.3, 0.5, 1.0, 0.5)), (0.1, (0.3, 0.5, 1.0, 0.2))],
    "precip_ciq": [(0.1, (2.0, 0.3, 0.3, 0.3)), (0.1, (1.0, 0.2, 0.2, 0.1))],
    "etopo5_global": [(0.3, (0.3, 0.3, 0.1)), (0.3, (0.1, 0.1, 0.03))],
    "pacific_sst, wide": [(0.3, (0.3, 0.5, 1.0, 0.1)), (0.3, (0.3, 0.5, 1.0, 0.3))],
    "era5_uk_t2m, wide": [(0.3, (0.5, 0.5, 1.0, 0.1)), (0.3, (0.5, 0.5, 1.0, 0.3))],
}
# Length scales of the seven settings and of time, signal, noise.
CURVES = [((1.5,) * 7, 1.0, 1.3, 0.6), ((2.2,) * 7, 0.9, 1.9, 0.05)]


def problems(names: list[str], cut: int, device: str) -> Iterator[tuple[str, LatentKroneckerOperator, Tensor]]:
    """Names, operators and observed values."""
    for name in names:
        if name == "MiniBooNE":
            data = lcbench_curves.curves(name, 0, rows=cut or None, device=device)
            for scales, time, signal, noise in CURVES:
                parts = [kernels.Scale(kernels.SquaredExponential(_each(scales)), signal)]
                parts.append(kernels.SquaredExponential(time))
                H = LatentKroneckerOperator(parts, [data.X, data.T], data.observed, noise)
                yield f"{name}, noise {noise}", H, data.Y[data.observed]
            continue
        kind = name.removesuffix(", wide")
        field = climate.generated((5000, 1000)) if kind == "generated" else climate.FIELDS[kind]()
        field = (climate.cut(field, cut) if cut else field).on(device)
        for share, values in SETTINGS[name]:
            given, _ = field.split(share, 0)
            observed = ~torch.isnan(given) & ~(middle(field) & (kind != name))
            H = LatentKroneckerOperator(sides(field, values[:-1]), field.factors, observed, values[-1])
            yield f"{name}, noise {values[-1]}", H, given[observed]


def middle(field: climate.Field) -> Tensor:
    """Cells between the quartiles of the first coordinate of every side: a quarter of a grid of two sides."""
    inside = []
    for X in field.factors:
        low, high = X[:, 0].quantile(torch.tensor([0.25, 0.75]).to(X))
        inside.append((X[:, 0] > low) & (X[:, 0] < high))
    return torch.stack(torch.meshgrid(*inside, indexing="ij")).all(0)


def sides(field: climate.Field, values: tuple[float, ...]) -> list[kernels.Kernel]:
    if field.kinds[-1] != "season":
        return [kernels.Matern(1.5, value) for value in values]
    space = kernels.SquaredExponential(_each((values[0],) * field.factors[0].shape[1]))
    return [space, kernels.SquaredExponential(values[1]) * kernels.Periodic(1.0, values[2])]


def _each(values: tuple[float, ...]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def measure(name: str, H: LatentKroneckerOperator, y: Tensor, options: argparse.Namespace) -> dict[str, Any]:
    source = torch.Generator().manual_seed(0)
    noise = torch.randn(len(y), options.columns - 1, generator=source).to(y)
    B = torch.cat([y.unsqueeze(1), noise], 1)
    row: dict[str, Any] = {"problem": name, "sizes": list(H.sizes), "n": H.shape[0]}
    row |= {"missing": 1.0 - H.shape[0] / float(torch.tensor(H.sizes).prod()), "holes": hole_variance(H)}
    row |= {"columns": options.columns, "limit": options.limit}
    row["auto"] = next(way for way, solver in WAYS.items() if solver == CG(choose_preconditioner(H, math.inf)))
    for way, solver in WAYS.items():
        found: list[Any] = []

        def solve(solver: Solver = solver, found: list[Any] = found) -> None:
            again = torch.Generator().manual_seed(1)
            found.append(solver.solve(H, B, tol=TOL, max_epochs=options.limit, generator=again))

        try:
            row[f"{way}, s"] = seconds(solve)
            row[f"{way}, epochs"] = found[0].epochs
            row[f"{way}, residual"] = float(found[0].residual.max())
            row[f"{way}, solver"] = found[0].solver
        except ValueError as error:
            row[f"{way}, refused"] = str(error)
    print("  ".join(f"{k} {v:.3g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()), flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    known = [*SETTINGS, "MiniBooNE"]
    parser.add_argument("names", nargs="*", default=known, help=", ".join(known))
    parser.add_argument(
        "--cut", type=int, default=400 if device_name() == "cpu" else 0, help="entries of a side; 0: all"
    )
    parser.add_argument("--columns", type=int, default=11)
    parser.add_argument("--limit", type=float, default=500.0, help="epochs")
    parser.add_argument("--device", default=device_name())
    options = parse(parser, names=["MiniBooNE"], cut=20, columns=3, limit=50.0)
    rows = [measure(*problem, options) for problem in problems(options.names, options.cut, options.device)]
    shown = (
        "problem",
        "n",
        "missing",
        "holes",
        "auto",
        *(f"{way}, {what}" for way in WAYS for what in ("epochs", "s")),
    )
    print(table([{key: row.get(key) for key in shown} for row in rows]))
    file = f"holes_{options.device}"
    print("written to", merge(file, ("problem", "n", "columns"), rows, tol=TOL))


if __name__ == "__main__":
    main()
