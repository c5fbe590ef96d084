"""Time to import pathgp in addition to torch.

    python -m benchmarks.hardware.imports [--runs 7]

Each run is a new process that imports torch and then pathgp; the times of both are medians. The integrations with other
libraries, matplotlib and pandas must not be imported.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from statistics import median

from benchmarks.common.options import parse
from benchmarks.common.recording import table, write

HEAVY = ("sklearn", "botorch", "gpytorch", "xarray", "pandas", "matplotlib", "triton", "pyarrow")
CODE = """
import json, sys, time
began = time.perf_counter()
import torch
between = time.perf_counter()
import pathgp
end = time.perf_counter()
print(json.dumps([between - began, end - between, sorted(sys.modules)]))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=7)
    runs = []
    options = parse(parser, runs=1)
    for _ in range(options.runs):
        done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
        runs.append(json.loads(done.stdout))
    along = sorted(set(HEAVY) & set(runs[0][2]))
    row = {"torch": median(run[0] for run in runs), "pathgp": median(run[1] for run in runs), "runs": len(runs)}
    print(table([row]))
    print("imported along:", ", ".join(along) or "none of", "" if along else ", ".join(HEAVY))
    write("imports", [row | {"along": along}])


if __name__ == "__main__":
    main()
