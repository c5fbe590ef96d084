"""Cost of solving to a tenth of the posterior standard deviation instead of to a relative residual alone.

    python -m benchmarks.solvers.last_solve                 # all sets; --sets pol elevators selects two

The five UCI sets with the authors' hyperparameters and three fields with holes, mean and 64 samples, automatic solver.
Recorded are epochs and seconds to tol = 0.01 alone, and with the additional bound on the error at the data (as in
`condition`), and that error in posterior standard deviations.
"""

from __future__ import annotations

import argparse
import math
import warnings
from typing import Any

import torch

import pathgp
from benchmarks.common.options import parse
from benchmarks.common.recording import device_name, table, write
from benchmarks.common.uci import UCI, uci
from benchmarks.thesis import table_6_2 as climate
from pathgp.posterior import conditioning

FIELDS = ("era5_uk_t2m", "pacific_sst", "colorado_monthly_met")
# Noise of a field in standard deviations of its values.
NOISE = 0.1


def measure(name: str, device: str, rows: int | None, cut: int) -> dict[str, Any]:
    """One set under both rules."""
    if name in FIELDS:
        field = climate.cut(climate.FIELDS[name](), cut).on(device)
        gp, observations = climate.model(field), (field.factors, field.split(0.3, 0)[0])
        gp.noise = NOISE
    else:
        table = uci(name, device=device, rows=rows)
        gp, observations = pathgp.GP(table.kernel(), noise=table.noise), (table.X, table.y)
    row: dict[str, Any] = {"set": name, "noise": float(gp.noise.detach())}
    for label, accuracy in (("tol alone", math.inf), ("both", conditioning.ACCURACY)):
        before, conditioning.ACCURACY = conditioning.ACCURACY, accuracy
        try:
            report = gp.condition(*observations, generator=torch.Generator().manual_seed(0)).report
        finally:
            conditioning.ACCURACY = before
        row |= {
            f"solver, {label}": report.solution.method,
            f"epochs, {label}": report.epochs,
            f"seconds, {label}": report.seconds,
            f"error, {label}": report.relative_resolution,
            f"status, {label}": report.status.name,
        }
        row["n"] = report.rows
    print(row, flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", nargs="*", default=[*UCI, *FIELDS])
    parser.add_argument("--rows", type=int, help="of tables, at most")
    parser.add_argument("--cut", type=int, default=400, help="entries of each side of a field")
    options = parse(parser, sets=["pol", "pacific_sst"], rows=200, cut=20)
    warnings.simplefilter("ignore", pathgp.ConvergenceWarning)
    device = device_name()
    rows = [measure(name, device, options.rows, options.cut) for name in options.sets]
    print(table(rows))
    print(f"written to {write(f'last_solve_{device}', rows)}")


if __name__ == "__main__":
    main()
