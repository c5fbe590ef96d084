"""Table 4.2 of the thesis: docking scores of molecules by a GP with a Tanimoto kernel, on a stand-in for DOCKSTRING.

    python -m benchmarks.thesis run "table 4.2" [options of molecules.py]

See molecules.py for the data, the methods and all options. Of the thesis's five targets only F2 has docking scores of
random ZINC molecules among our data; with a twentieth of the molecules it is not comparable.
"""

from __future__ import annotations

from benchmarks.common.recording import read
from benchmarks.thesis import molecules
from benchmarks.thesis.published import Cell, tables

TITLE = "Docking scores of molecules"
RESULTS = ("molecules_cuda", "molecules_cpu")
METHODS = {"SDD": "sdd", "SGD": "sgd", "SVGP": "svgp", "automatic (ours)": "ours"}
STAND_IN, ABSENT = "a stand-in with a twentieth of the molecules at most", "the data set could not be obtained"


def table_cells() -> list[Cell]:
    """Our values: only F2 is a column of the thesis's table."""
    rows = next((rows for name in RESULTS if (rows := read(name))), [])
    found = []
    for row, method in METHODS.items():
        for column in tables()["table 4.2"]["columns"]:
            mine = [line for line in rows if (line["target"], line["method"]) == (column, method)]
            most = max((line["rows"] for line in mine), default=0)
            values = tuple(line["r2"] for line in mine if line["rows"] == most)
            found.append(Cell("R2", row, column, values, STAND_IN if values else ABSENT, higher_is_better=True))
    return found


def main() -> None:
    molecules.main()
