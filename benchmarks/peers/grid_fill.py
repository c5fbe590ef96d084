"""Fill fields over sites and times, against linear interpolation in time.

    python -m benchmarks.peers.grid_fill [NAME ...] [--holes scattered times] [--samples 32] [--seeds 0] [--device cpu]

The fields are cut to 1,000 x 132 cells:

- pacific_sst, 1,000 sites x 132 months, and era5_uk_t2m, 1,000 sites x 132 hours, both complete;
- colorado_monthly_met, 132 stations (those with most observations) x 1,000 months; a fifth of the cells has no value.

*scattered*: a tenth of the known cells is held out at random. *times*: all cells at a tenth of the times are held out,
neither the first nor the last one. `pathgp.xarray.fill` gets the field with latitudes, longitudes and dates, and no
other option than the number of samples. Seconds are wall-clock time and processor time of the whole call. RMSE and, of
the 95 % intervals of observations, the share of held-out values inside (coverage), the mean negative log density (nll);
``linear_rmse`` is that of interpolation in time, site by site. The file keeps the rows of earlier runs.
"""

from __future__ import annotations

import argparse
import time
import warnings
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import pathgp
from benchmarks.common.datasets import load
from benchmarks.common.options import parse
from benchmarks.common.recording import merge, read, require, table
from pathgp.metrics import coverage, nll, rmse

FIELDS = ("pacific_sst", "era5_uk_t2m", "colorado_monthly_met")
HOLES = ("scattered", "times")
KEY = ("field", "holes", "seed", "cells", "samples")
SHARE = 0.1


def read_field(name: str, sites: int, times: int) -> Any:
    """A field (site, time) as a DataArray, with latitudes, longitudes and dates."""
    xr, pd = require("xarray"), require("pandas")
    data = load(name)
    S, Y = data.factors[0], data.Y.astype(np.float64)
    if name == "colorado_monthly_met":
        sites, times = times, sites
        Y = Y[:, -times:]
        chosen = np.sort(np.argsort(-np.isfinite(Y).sum(1), kind="stable")[:sites])
        dates = pd.date_range(end="1997-12-01", periods=times, freq="MS")
    else:
        chosen = np.linspace(0, len(S) - 1, sites).astype(int)
        if name == "pacific_sst":
            Y, dates = Y[:, -times:], pd.date_range(end="2003-03-01", periods=times, freq="MS")
        else:
            Y, dates = Y[:, :times], pd.date_range("2019-03-01", periods=times, freq="h")
    coords = {"time": dates, "lat": ("site", S[chosen, 0]), "lon": ("site", S[chosen, 1])}
    return xr.DataArray(Y[chosen], coords, ("site", "time"), name=name)


def hold_out(values: NDArray[np.float64], holes: str, seed: int) -> NDArray[np.bool_]:
    """The cells to hold out."""
    draw, known = np.random.default_rng(seed), np.isfinite(values)
    if holes == "scattered":
        return known & (draw.random(values.shape) < SHARE)
    times = values.shape[1]
    chosen = draw.choice(np.arange(1, times - 1), max(1, round(SHARE * times)), replace=False)
    return known & np.isin(np.arange(times), chosen)


def interpolate(values: NDArray[np.float64], dates: NDArray[Any]) -> NDArray[np.float64]:
    """Linear interpolation in time at every site, constant beyond the ends; the mean of all where a site is empty."""
    t, result = (dates - dates[0]) / np.timedelta64(1, "h"), values.copy()
    for row in result:
        known = np.isfinite(row)
        row[~known] = np.interp(t[~known], t[known], row[known]) if known.any() else np.nanmean(values)
    return result


def measure(name: str, holes: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    from pathgp.xarray import fill

    field = read_field(name, options.sites, options.times)
    truth = field.values
    held_out = hold_out(truth, holes, seed)
    given = field.where(~held_out)
    linear = interpolate(given.values, field["time"].values)
    began, busy = time.perf_counter(), time.process_time()
    generator = torch.Generator().manual_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pathgp.ConvergenceWarning)
        filled = fill(given, samples=options.samples, progress=False, device=options.device, generator=generator)
    mean, variance = filled["mean"].values, filled["std"].values ** 2 + filled.attrs["noise"] ** 2
    y, m, v = truth[held_out], mean[held_out], variance[held_out]
    row = {"field": name, "holes": holes, "seed": seed, "n": int(np.isfinite(given.values).sum())}
    row |= {"cells": list(truth.shape), "samples": options.samples, "device": options.device}
    row |= {"seconds": time.perf_counter() - began, "cpu_seconds": time.process_time() - busy}
    row |= {"rmse": rmse(y, m), "linear_rmse": rmse(y, linear[held_out]), "coverage": coverage(y, m, v)}
    row |= {"nll": nll(y, m, v), **{key: value for key, value in filled.attrs.items() if key != "report"}}
    print("  ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()), flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=list(FIELDS), help=", ".join(FIELDS))
    parser.add_argument("--holes", nargs="*", choices=HOLES, default=list(HOLES))
    parser.add_argument("--seeds", type=int, nargs="*", default=[0])
    parser.add_argument("--sites", type=int, default=1000)
    parser.add_argument("--times", type=int, default=132)
    parser.add_argument("--samples", type=int, default=32)
    parser.add_argument("--device", default="cpu")
    options = parse(parser, names=["pacific_sst"], holes=["scattered"], sites=12, times=10, samples=4)
    file = f"grid_fill_{options.device}"
    for name in options.names:
        for holes in options.holes:
            for seed in options.seeds:
                merge(file, KEY, measure(name, holes, seed, options))
    shown = ("field", "holes", "n", "seconds", "cpu_seconds", "rmse", "linear_rmse", "coverage", "nll")
    print(table([{name: row[name] for name in shown} for row in read(file)]))


if __name__ == "__main__":
    main()
