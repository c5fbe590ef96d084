"""The table to learn from: which columns are inputs and what they hold, and which rows are held out."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pathgp.cli.blocks import Block
from pathgp.cli.commands import example_table
from pathgp.cli.molecules import Molecules, find_molecules
from pathgp.cli.output import UsageError, print_note
from pathgp.cli.tables import Table, join_names, open_table, read_blocks
from pathgp.compute.distinct import label_distinct_rows
from pathgp.data.tabular import Columns, distinct, find_categories, find_date_kind
from pathgp.html.numbers import count


@dataclass(frozen=True)
class Data:
    """A table as a regression problem; X: the inputs (n, d), a sparse matrix of SciPy for molecules."""

    name: str
    columns: Columns | Molecules
    target: str
    X: Any
    y: NDArray[np.float64]
    skipped: int


def choose_test_rows(data: Data, options: argparse.Namespace) -> NDArray[np.bool_]:
    """The mask of the held-out rows; copies of a row are all held out, or none of them."""
    n = len(data.y)
    order, number = np.random.default_rng(options.seed).permutation(n), int(options.holdout * n)
    if isinstance(data.columns, Molecules):
        test = np.zeros(n, dtype=bool)
        test[order[:number]] = True
    else:
        test = _hold_out(np.column_stack([data.X, data.y]), order, number)
    learned = data.y[~test]
    remedy = ", --holdout 0 learns from all" if test.any() else ""
    if len(learned) < 2:
        held_out = f", {int(test.sum())} of them held out" if test.any() else ""
        raise ValueError(
            f"{data.name} has {count(n, 'usable row')}{held_out}: at least two are needed to learn from{remedy}"
        )
    if np.ptp(learned) == 0:
        rows = "every row" if np.ptp(data.y) == 0 else "every row that is not held out"
        remedy = "" if np.ptp(data.y) == 0 else remedy
        raise ValueError(f"the target {data.target!r} is {learned[0]:g} in {rows}: there is nothing to learn{remedy}")
    if not isinstance(data.columns, Molecules) and np.ptp(data.X[~test], 0).max() == 0:
        print_note("warning: every input is constant, so that all predictions are the mean of the target")
    return test


def _hold_out(rows: NDArray[np.float64], order: NDArray[np.intp], number: int) -> NDArray[np.bool_]:
    """The mask of the first ``number`` rows of a random order in which copies follow each other; fewer if this would
    separate copies."""
    label = label_distinct_rows(torch.as_tensor(rows))[0].numpy()
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    first = np.full(len(order), len(order))
    np.minimum.at(first, label, place)
    order = np.lexsort((place, first[label]))
    test = np.zeros(len(order), dtype=bool)
    test[order[:number]] = True
    return test & ~np.isin(label, label[order[number:]])


def read_file(options: argparse.Namespace) -> Data:
    """Read the whole file. The first block decides which columns hold text or dates."""
    table = open_table(options.file, not options.no_header, options.decimal_comma)
    if options.target is None:
        raise UsageError(f"name the column to predict with --target: there are {join_names(table.names)}")
    target = table.require(options.target, "--target")
    molecules = find_molecules(options, table)
    # The rows that are learned from need no id.
    ids = options.id if options.predict is not None else [table.require(name, "--id") for name in options.id]
    names, categorical = _inputs(table, target, ids, options) if molecules is None else (molecules.names, set())
    if target in names:
        raise UsageError(f"{target!r} cannot be an input and the target")
    texts = categorical if molecules is None else molecules.texts
    date_kinds: dict[str, str] = {}

    def find_kinds(block: Block) -> dict[str, str]:
        kinds = {name: "text" if name in texts else block.kind(name) for name in names}
        if target not in categorical and block.kind(target) != "number":
            raise ValueError(f"the target {target!r} holds text: pathgp learns numbers, not classes")
        found = {name: find_date_kind(block.texts(name)) for name in names if kinds[name] == "date"}
        date_kinds.update({name: kind for name, kind in found.items() if kind is not None})
        return kinds | {target: "number"}

    advice = "fill in what is missing, or leave such rows out with --skip-missing"
    row_names: list[str] = []
    ignorable = names if molecules is None else []
    whole, kinds, skipped = read_columns(table, [*names, target], find_kinds, options, advice, row_names, ignorable)
    if molecules is not None:
        others = [name for name in table.names if name not in {*names, target, *ids}]
        if others and not options.quiet:
            print_note(f"the inputs are the fingerprints of {molecules.column!r}; not used: {join_names(others)}")
        X = molecules.matrix(whole.__getitem__, row_names.__getitem__)
        return Data(table.name, molecules, target, X, whole[target], skipped)
    categories = {}
    for name in [name for name in names if kinds[name] == "text"]:
        advice = f"leave it out with --ignore {name} or --id {name}, or insist with --categorical {name}"
        categories[name] = find_categories(name, whole[name].tolist(), name in categorical, advice)
    columns = Columns(names, categories, [name for name in names if kinds[name] == "date"], date_kinds)
    return Data(table.name, columns, target, columns.matrix(whole.__getitem__), whole[target], skipped)


def read_columns(
    table: Table,
    names: Sequence[str],
    find_kinds: Callable[[Block], dict[str, str]],
    options: argparse.Namespace,
    advice: str,
    row_names: list[str] | None = None,
    ignorable: Sequence[str] = (),
) -> tuple[dict[str, NDArray[Any]], dict[str, str], int]:
    """Read columns of all rows without missing values.

    find_kinds: the kinds of the columns, from the first block.  advice: what to do about missing values, if there are
    some and no --skip-missing.  row_names: gets the names of these rows, such as "line 3".  ignorable: columns that
    --ignore can leave out. Returns the columns and their kinds by name, and the number of rows left out.
    """
    kinds: dict[str, str] = {}
    parts: list[dict[str, NDArray[Any]]] = []
    first, skipped = "", 0
    for block in read_blocks(table, names, options.quiet):
        kinds = kinds or find_kinds(block)
        values, missing, message = block.convert(kinds)
        first, skipped = first or message, skipped + int(missing.sum())
        parts.append({name: column[~missing] for name, column in values.items()})
        if row_names is not None:
            row_names += [block.name_row(row) for row in np.flatnonzero(~missing).tolist()]
    if first and not options.skip_missing:
        others = f", and {skipped:,} rows in all lack a value" if skipped > 1 else ""
        # Only an input can be ignored, not the target.
        ignore = (
            ", or columns with --ignore" if any(first.startswith(f"column {name!r} ") for name in ignorable) else ""
        )
        raise ValueError(f"{first}{others}: {advice}{ignore}")
    if not sum(len(part[names[0]]) for part in parts):
        raise ValueError(f"{table.name} has no rows" + (" without missing values" if skipped else ""))
    return {name: np.concatenate([part[name] for part in parts]) for name in kinds}, kinds, skipped


def _inputs(table: Table, target: str, ids: Sequence[str], options: argparse.Namespace) -> tuple[list[str], set[str]]:
    """The names of the input columns, and of those to read as categories."""
    ignored = {table.require(name, "--ignore") for name in options.ignore}
    categorical = {table.require(name, "--categorical") for name in options.categorical}
    if options.inputs is None:
        names = [name for name in table.names if name not in {target, *ignored, *ids}]
        unnamed = [name for name in names if name.startswith("#") and name[1:].isdigit()]
        if unnamed:
            raise ValueError(
                f"column {unnamed[0][1:]} of {table.name} has no name (row numbers of a data frame?): name it, "
                f"or leave it out with --ignore '{unnamed[0]}'"
            )
    else:
        names = [table.require(name, "--inputs") for name in options.inputs if name not in ignored]
    if len(set(names)) < len(names):
        raise UsageError("--inputs names a column twice")
    if not names:
        raise UsageError("no column is left as an input")
    return names, categorical


def read_example(options: argparse.Namespace) -> Data:
    names = ("target", "inputs", "ignore", "categorical", "id", "smiles")
    given = [name for name in names if getattr(options, name)]
    if given:
        raise UsageError(f"--{given[0]} needs a file: pathgp fit FILE --target COL")
    if not options.quiet:
        print_note("no file given: fitting the example data, made-up growth of 600 plants (see pathgp example)")
    table = example_table()
    *inputs, target = table
    columns = Columns(inputs, {"soil": distinct(table["soil"].tolist())})
    return Data("the example", columns, target, columns.matrix(table.__getitem__), table[target], 0)
