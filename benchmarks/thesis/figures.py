"""Figures of the thesis, reproduced with this library.

    python -m benchmarks.thesis.figures [NAME ...] [--out DIR] [--rows N]

NAME is 2.1, 2.2, 2.3 (priors), 3.1 (solvers on a toy problem), 3.2 (noise of gradients), 3.3 (error norms), 3.4,
regions, directions (spectral view of descent), 3.5 (errors by time), 4.1, 4.2, 4.3 (gradient methods), 5.1, 5.3, 5.4,
5.5, 5.8, 5.9 (learning), 6.2, 6.3 (grids with holes), or all. Figures on real data use a subset of the rows on a CPU
(--rows, 3000 by default, 1000 for learning, with 30 steps instead of 100; 1000 per side for 6.2, 250 for 6.3) and all
rows on a GPU.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.common.options import parse
from benchmarks.thesis import (
    figures_costs,
    figures_descent,
    figures_grid,
    figures_learning,
    figures_norms,
    figures_priors,
    figures_sgd,
    figures_spectral,
    figures_toy,
)

CPU_ROWS, CPU_ROWS_LEARNING = 3000, 1000
PRIORS: dict[str, Callable[[Path], Path]] = {
    "2.1": figures_priors.squared_exponential,
    "2.2": figures_priors.matern,
    "2.3": figures_priors.periodic,
}
DATA: dict[str, Callable[[Path, int | None], Path]] = {
    "3.1": figures_toy.solvers_compared,
    "3.2": figures_sgd.gradient_noise,
    "3.3": figures_norms.error_norms,
    "3.4": figures_spectral.error_and_basis,
    "regions": figures_spectral.regions_of_a_map,
    "directions": figures_spectral.errors_by_direction,
    "3.5": figures_sgd.errors_by_time,
    "4.1": figures_descent.primal_and_dual,
    "4.2": figures_descent.features_and_coordinates,
    "4.3": figures_descent.momentum_and_averaging,
}
LEARNING: dict[str, Callable[[Path, int | None], Path]] = {
    "5.1": figures_costs.time_shares,
    "5.3": figures_learning.initial_distances,
    "5.4": figures_learning.probes,
    "5.5": figures_learning.cold_trajectories,
    "5.8": figures_learning.warm_trajectories,
    "5.9": figures_costs.budgets,
}
GRIDS: dict[str, Callable[[Path, int | None], Path]] = {
    "6.2": figures_grid.resources_against_n,
    "6.3": figures_grid.inverse_dynamics,
}
# Training rows on a CPU by figure.
CPU = {
    **dict.fromkeys(DATA, CPU_ROWS),
    **dict.fromkeys(LEARNING, CPU_ROWS_LEARNING),
    "6.2": 1000,
    "6.3": 250,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [*PRIORS, *DATA, *LEARNING, *GRIDS]
    parser.add_argument("names", nargs="*", metavar="NAME", default=["all"])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/scratch"), help="folder for the PNG files")
    parser.add_argument("--rows", type=int, help="training rows; by default all on a GPU and a part on a CPU")
    options = parse(parser, names=["2.1", "4.1"], rows=60)
    if unknown := set(options.names) - {*names, "all"}:
        parser.error(f"no figure {', '.join(sorted(unknown))}: choose from {', '.join(names)}, all")
    for name in names if "all" in options.names else options.names:
        began = time.perf_counter()
        path = options.out / f"figure-{name}.png"
        if name in PRIORS:
            PRIORS[name](path)
        else:
            rows = options.rows or (None if torch.cuda.is_available() else CPU[name])
            (DATA | LEARNING | GRIDS)[name](path, rows)
        print(f"figure {name}: {path}, {time.perf_counter() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
