"""Table 3.1 of the thesis: SGD, CG and SVGP on UCI sets, also with a low noise.

    python -m benchmarks.thesis run "table 3.1" [SET ...] [--splits 0 1 2 3 4] [--methods CG-100 SGD SVGP-4096]
                                                     [--low-noise]

See uci_inference.py for all options and the protocol.
"""

from __future__ import annotations

from benchmarks.thesis import uci_inference
from benchmarks.thesis.published import Cell
from benchmarks.thesis.uci_cells import PROTOCOL as COMMON
from benchmarks.thesis.uci_cells import explain_cell, make_cells, note_samples

TITLE = "Inference by stochastic gradient descent on UCI sets"
RESULTS = ("uci_inference_cuda", "uci_low_noise_cuda")
LOW_NOISE = """\
Low-noise RMSE: with a noise of 0.001. CG has another preconditioner there, that of this library, and goes to a residual
of 0.001."""
PROTOCOL = COMMON.format(points="4,096", sdd="") + "\n\n" + LOW_NOISE
CONCLUSION = """\
SGD with a noise of 0.001 was run on one split only. After all steps it has the same errors as with the larger noise."""
ROWS = {"SGD": ("SGD",), "CG": ("CG-100", "CG"), "SVGP": ("SVGP-4096",)}


def table_cells() -> list[Cell]:
    """Our values for the cells of the table."""
    return make_cells("table 3.1", ROWS)


def explain(cell: Cell) -> dict[str, str]:
    """What the results say about a cell that is worse than the thesis's."""
    return explain_cell("table 3.1", ROWS, cell)


notes = note_samples


def main() -> None:
    uci_inference.main(("exact", "auto", "CG-100", "SGD", "SVGP-4096"))
