"""Table 4.2 of the thesis: docking scores of molecules by a GP with a Tanimoto kernel, on a stand-in for DOCKSTRING.

    python -m benchmarks.thesis run "table 4.2" [options of molecules.py]

See molecules.py for the data, the methods and all options. Of the thesis's five targets only F2 has docking scores of
random ZINC molecules among our data; with a twentieth of the molecules it is not comparable.
"""

from __future__ import annotations

from benchmarks.common.recording import read
from benchmarks.thesis import molecules
from benchmarks.thesis.published import Cell, other_rows, tables

TITLE = "Docking scores of molecules"
RESULTS = ("molecules_cuda", "molecules_cpu")
PROTOCOL = """\
A column is a target, and R² is that of its docking scores for held-out molecules. Our molecules are the random ZINC
molecules that the authors of DOCKSTRING docked, split at random. *automatic (ours)* is `GP.fit` without options. SDD
and SGD solve once, at the hyperparameters of an exact fit of 2,000 molecules. SVGP is GPyTorch's with 1,000 inducing
points. [Five more targets](../benchmarks.md#decisions-and-molecules) were measured."""
METHODS = {"SDD": "sdd", "SGD": "sgd", "SVGP": "svgp", "automatic (ours)": "ours"}
STAND_IN = "a stand-in for DOCKSTRING with a twentieth of its molecules at most"
ABSENT = "DOCKSTRING could not be obtained, and its stand-in has no scores of these targets"
NOT_RUN = "DOCKSTRING could not be obtained, and this was not run on its stand-in"
OTHERS = "not a Gaussian process: the thesis quotes the values from earlier work"


def table_cells() -> list[Cell]:
    """Our values: only F2 is a column of the thesis's table."""
    rows = [row for name in RESULTS for row in read(name)]
    found = []
    for row, method in METHODS.items():
        for column in tables()["table 4.2"]["columns"]:
            mine = [line for line in rows if (line["target"], line["method"]) == (column, method)]
            most = max((line["rows"] for line in mine), default=0)
            # One value per seed: that of the GPU, where there are two.
            values = tuple({line["seed"]: line["r2"] for line in reversed(mine) if line["rows"] == most}.values())
            reason = STAND_IN if values else NOT_RUN if column in molecules.DOCKSTRING else ABSENT
            found.append(Cell("R²", row, column, values, reason, higher_is_better=True))
    return found + other_rows("table 4.2", OTHERS, found)


def main() -> None:
    molecules.main()
