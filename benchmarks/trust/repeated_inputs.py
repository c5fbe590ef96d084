"""Small or large noise, where some rows repeat the inputs of others: likelihood of the data, densities of new rows.

    python -m benchmarks.trust.repeated_inputs [--set protein] [--sizes 9990 19900] [--further 8000]

The default fit of every subset gives hyperparameters. With each of them the model is conditioned on the largest subset:
the log marginal likelihood of this subset, and the scores of `more_rows` on the test rows and on further rows.
"""

from __future__ import annotations

import argparse
import warnings
from typing import Any

import torch
from torch import Tensor

import pathgp
from benchmarks.common.options import parse
from benchmarks.common.recording import device_name, results_file, table, write
from benchmarks.common.tables import table as load_table
from benchmarks.common.uci import Split
from benchmarks.peers.default_fit import model
from benchmarks.trust.more_rows import score
from pathgp.posterior.table import Posterior


def compare(data: Split, sizes: list[int], further: Tensor) -> list[dict[str, Any]]:
    """A row for the fit of every subset, and one for its hyperparameters with the largest subset."""
    found, largest = [], max(sizes)
    for size in sizes:
        gp = model(data)
        gp.fit(data.X[:size], data.y[:size], dtype="auto", generator=torch.Generator().manual_seed(0))
        found.append(_row(gp.posterior, data, further, {"fitted": size, "n": size}))
        if size < largest:
            X, y = data.X[:largest], data.y[:largest]
            post = gp.condition(X, y, dtype="auto", generator=torch.Generator().manual_seed(0))
            found.append(_row(post, data, further, {"fitted": size, "n": largest}))
    return found


def _row(post: Posterior, data: Split, further: Tensor, facts: dict[str, int]) -> dict[str, Any]:
    """The noise, the log marginal likelihood of the data in nats per row with its standard error, and the scores."""
    evidence = post.log_marginal_likelihood(generator=torch.Generator().manual_seed(0))
    per_row = {"evidence": evidence.value / facts["n"], "evidence_error": evidence.error / facts["n"]}
    repeated = 1.0 - len(data.X[: facts["n"]].unique(dim=0)) / facts["n"]
    row = {"set": data.name, **facts, "repeated": repeated, "noise": post.noise_std, **per_row}
    return score(post, data, further, row).row


def main() -> None:
    device = device_name()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--set", default="protein")
    parser.add_argument("--sizes", nargs="*", type=int, default=[9990, 19_900])
    parser.add_argument("--further", type=int, default=8000, help="rows after the largest subset that are scored, too")
    options = parse(parser, set="noise_0.1", sizes=[60, 120], further=30)
    data = load_table(options.set, dtype=torch.float64, device=device)
    first = max(options.sizes)
    further = torch.arange(first, min(len(data.X), first + options.further))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pathgp.ConvergenceWarning)
        rows = compare(data, options.sizes, further)
    name = f"repeated_inputs_{device}"
    write(name, rows)
    print(table(rows))
    print("written to", results_file(name))


if __name__ == "__main__":
    main()
