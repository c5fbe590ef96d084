"""The thesis's figures, drawn with this library.

    python benchmarks/figures.py NAME [--out DIR] [--rows N]

NAME is 2.1, 2.2, 2.3 (priors), 3.1 (solvers on a toy problem), 3.3 (error norms), 4.1, 4.2, 4.3 (gradient methods), or
all. Figures on real data use a part of the rows on a CPU (--rows, 3000 by default) and all of them on a GPU.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import figures_descent
import figures_norms
import figures_priors
import figures_toy
import torch

CPU_ROWS = 3000
PRIORS: dict[str, Callable[[Path], Path]] = {
    "2.1": figures_priors.squared_exponential,
    "2.2": figures_priors.matern,
    "2.3": figures_priors.periodic,
}
DATA: dict[str, Callable[[Path, int | None], Path]] = {
    "3.1": figures_toy.solvers_compared,
    "3.3": figures_norms.error_norms,
    "4.1": figures_descent.primal_and_dual,
    "4.2": figures_descent.features_and_coordinates,
    "4.3": figures_descent.momentum_and_averaging,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=[*PRIORS, *DATA, "all"], metavar="NAME")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/scratch"), help="folder for the PNG files")
    parser.add_argument("--rows", type=int, help="training rows; all on a GPU and 3000 on a CPU by default")
    options = parser.parse_args()
    rows = options.rows or (None if torch.cuda.is_available() else CPU_ROWS)
    for name in [*PRIORS, *DATA] if options.name == "all" else [options.name]:
        began = time.perf_counter()
        path = options.out / f"figure-{name}.png"
        path = PRIORS[name](path) if name in PRIORS else DATA[name](path, rows)
        print(f"figure {name}: {path}, {time.perf_counter() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
