"""Every table and figure of the thesis, by command.

    python -m benchmarks.thesis list
    python -m benchmarks.thesis run "table 4.1" [options of that table]
    python -m benchmarks.thesis run "figure 3.3" [--rows N] [--steps N] [--out DIR] [--quick]
    python -m benchmarks.thesis all [NAME ...] [--kinds figure] --quick
    python -m benchmarks.thesis pages [--check]

``run`` of a figure writes its picture to docs/assets/figures and its record to benchmarks/results; figures on real data
use a part of the rows on a CPU and all on a GPU. ``all`` runs everything; with ``--quick`` at tiny sizes, with results
in benchmarks/scratch. ``pages`` writes docs/thesis and the README's table from the results, or checks that they hold
nothing else.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from benchmarks.common.recording import BENCHMARKS
from benchmarks.thesis.index import Item, draw, find, items, run_program


def list_items() -> None:
    for item in items():
        module = item.load()
        print(f"{item.name:12} {module.TITLE:48} {', '.join(getattr(module, 'RESULTS', (item.key,)))}")


def run(item: Item, arguments: list[str]) -> None:
    """One item; the options of a table are those of its module."""
    if item.kind == "table":
        run_program(f"benchmarks.thesis.{item.key}", arguments)
        return
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.thesis run {item.name!r}")
    parser.add_argument("--rows", type=int, help="training rows; by default all on a GPU and a part on a CPU")
    parser.add_argument("--steps", type=int, help="steps of a fit; by default 100 on a GPU and 30 on a CPU")
    parser.add_argument("--out", type=Path, help="folder for the picture and its record")
    parser.add_argument("--quick", action="store_true", help="tiny size, results in benchmarks/scratch")
    options = parser.parse_args(arguments)
    if options.quick:
        os.environ.setdefault("PATHGP_RESULTS", str(BENCHMARKS / "scratch"))
    print(draw(item, options.rows, options.steps, options.quick, options.out))


def run_all(chosen: list[Item], arguments: list[str]) -> int:
    """These items with these arguments; return how many failed. What cannot run here says why in one line."""
    failed, skipped, began = 0, 0, time.perf_counter()
    for item in chosen:
        start = time.perf_counter()
        try:
            run(item, arguments)
            state = "ok"
        except SystemExit as end:
            is_reason = isinstance(end.code, str)
            state = f"skipped: {end.code}" if is_reason else "FAILED" if end.code else "ok"
            skipped += is_reason
            failed += state == "FAILED"
        except Exception as error:
            state = f"FAILED: {type(error).__name__}: {error}"
            failed += 1
        print(f"{item.name}: {state}, {time.perf_counter() - start:.1f} s", flush=True)
    ran = len(chosen) - skipped - failed
    print(f"{ran} ran, {skipped} skipped, {failed} failed, {time.perf_counter() - began:.0f} s")
    return failed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("list", help="all tables and figures, and their results")
    one = verbs.add_parser("run", help="one table or figure", add_help=False)
    one.add_argument("name")
    every = verbs.add_parser("all", help="all tables and figures; other options go to each of them")
    every.add_argument("names", nargs="*", metavar="NAME", help="only these")
    every.add_argument("--quick", action="store_true")
    every.add_argument("--kinds", nargs="*", choices=["table", "figure"], default=["table", "figure"])
    pages = verbs.add_parser("pages", help="write docs/thesis from the results")
    pages.add_argument("--check", action="store_true", help="only compare")
    options, rest = parser.parse_known_args()
    if rest and options.verb not in ("run", "all"):
        parser.error(f"unknown options: {' '.join(rest)}")
    if options.verb == "list":
        list_items()
    elif options.verb == "run":
        run(find(options.name), rest)
    elif options.verb == "all":
        chosen = [find(name) for name in options.names] or [item for item in items() if item.kind in options.kinds]
        sys.exit(1 if run_all(chosen, [*rest, *(["--quick"] if options.quick else [])]) else 0)
    else:
        from benchmarks.thesis.pages import check, write_pages

        sys.exit(check() if options.check else write_pages())


if __name__ == "__main__":
    main()
