"""Table 4.1 of the thesis: SDD, SGD, CG and SVGP on UCI sets.

    python -m benchmarks.thesis.table_4_1 [SET ...] [--splits 0 1 2 3 4] [--methods SDD SGD CG-100 SVGP auto]

See uci_inference.py for all options and the protocol.
"""

from __future__ import annotations

from benchmarks.thesis import uci_inference
from benchmarks.thesis.published import Cell
from benchmarks.thesis.uci_cells import PROTOCOL as COMMON
from benchmarks.thesis.uci_cells import explain_cell, make_cells, note_samples

TITLE = "Inference by stochastic dual descent on UCI sets"
RESULTS = ("uci_inference_cuda",)
PROTOCOL = COMMON.format(
    points="3,000", sdd="\n- SDD: stochastic dual descent with batches of 512, at most 100,000 steps."
)
CONCLUSION = "With more inducing points SVGP reaches the value of the thesis."
ROWS = {"SDD": ("SDD",), "SGD": ("SGD",), "CG": ("CG-100", "CG"), "SVGP": ("SVGP",)}


def table_cells() -> list[Cell]:
    """Our values for the cells of the table."""
    return make_cells("table 4.1", ROWS)


def explain(cell: Cell) -> dict[str, str]:
    """What the results say about a cell that is worse than the thesis's."""
    return explain_cell("table 4.1", ROWS, cell)


notes = note_samples


def main() -> None:
    uci_inference.main(("exact", "auto", "CG-100", "SDD", "SGD", "SVGP"))


if __name__ == "__main__":
    main()
