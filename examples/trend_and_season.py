"""Decompose a time series into trend, season and irregular part, each with its own uncertainty.

The data are forty years of generated monthly values that resemble carbon dioxide concentrations. The kernel is a sum of
three kernels with learned hyperparameters. One solve gives the posterior of each component, and the components of every
path add up to the path. The figure needs matplotlib.
"""

import numpy as np
import torch
from matplotlib.figure import Figure
from scipy.ndimage import uniform_filter1d

import pathgp
from pathgp import kernels
from pathgp.plots import DATA, MEAN, PATH, TRUTH, tidy

rng = np.random.default_rng(0)
t = np.arange(480) / 12  # years
truth = {
    "trend": 320 + 1.1 * t + 0.015 * t**2,
    "season": (1 + t / 80) * (2.5 * np.sin(2 * np.pi * t) + 0.9 * np.cos(4 * np.pi * t)),
    "irregular": 0.6 * np.sin(2 * np.pi * t / 3.6 + 2 * np.sin(t / 2)),
}
y = sum(truth.values()) + 0.3 * rng.normal(size=len(t))
seen = (t < 17) | (t > 20)  # a gap of three years

kernel = (
    kernels.Scale(kernels.SquaredExponential(25.0), signal=50.0)  # varies over decades
    + kernels.Scale(kernels.Periodic(1.0, 1.0) * kernels.SquaredExponential(50.0), signal=3.0)  # varies slowly
    + kernels.Scale(kernels.Matern(nu=2.5, lengthscale=1.0), signal=0.5)  # varies from year to year
)
gp = pathgp.GP(kernel, noise=0.3, mean=350.0)
# Fix the period: the peak of the likelihood is so narrow that an optimiser step would leave it permanently.
gp.constrain("period", fixed=True)
generator = torch.Generator().manual_seed(0)
# 443 rows: exact gradients cost little, and L-BFGS converges.
report = gp.fit(t[seen, None], y[seen], initialise="model", samples=256, generator=generator)
print(report, end="\n\n")
post = gp.posterior

x = np.arange(-24, 47 * 24)[:, None] / 24  # from a year before the data to seven years beyond
parts = dict(zip(truth, post.components().values(), strict=True))
mean = {name: part.mean(x) for name, part in parts.items()}
paths = {name: part.paths(x) for name, part in parts.items()}
print(f"the means add up to {np.abs(350 + sum(mean.values()) - post.mean(x)).max():.0e}, ", end="")
print(f"the paths to {np.abs(350 + sum(paths.values()) - post.paths(x)).max():.0e}")

# Both season and trend can contain a constant, and the data determine only the sum of the two. Move the yearly average
# of the season to the trend, in the mean and in every path, so that the season oscillates around zero.
for values in (mean, paths):
    level = uniform_filter1d(values["season"], 24)  # the average over one year
    values["season"] = values["season"] - level
    values["trend"] = values["trend"] + level + 350

band = {name: 1.96 * (paths[name] - mean[name]).std(0) for name in parts}
now, later = 31 * 24, 46 * 24
print("\n           component                      std in year 30: as it is   level moved   in year 45   error")
for name, part in parts.items():
    std = np.sqrt(part.variance(x[now : now + 1], method="solve")[0])
    error = np.sqrt(np.mean((mean[name][24 : 41 * 24 : 2] - truth[name]) ** 2))
    print(f"{name:<9}  {part.name:<29}  {std:24.2f}   {band[name][now] / 1.96:11.2f}", end="")
    print(f"   {band[name][later] / 1.96:10.2f}   {error:5.2f}")

figure = Figure(figsize=(9, 8), layout="constrained")
top, *others = figure.subplots(4, 1, sharex=True, height_ratios=[1.5, 1, 1, 1])
top.plot(t[seen], y[seen], ".", color=DATA, ms=3, label="data")
half = 1.96 * np.sqrt(post.variance(x, method="solve"))
panels = [("all together", post.mean(x), half, post.paths(x))]
panels += [(f"{name}: {part.name}", mean[name], band[name], paths[name]) for name, part in parts.items()]
for axes, (title, centre, half, draws) in zip([top, *others], panels, strict=True):
    axes.fill_between(x[:, 0], centre - half, centre + half, color=MEAN, alpha=0.2, lw=0, label="95 % band")
    axes.plot(x, draws[:3].T, color=PATH, lw=0.6, label=["3 paths", None, None])
    axes.plot(x, centre, color=MEAN, lw=1.2, label="mean")
    axes.set_xlim(0, 46)
    axes.set_title(title, loc="left", fontsize=9)
    tidy(axes)
for axes, values in zip(others, truth.values(), strict=True):
    axes.plot(t, values, color=TRUTH, lw=0.9, ls=(0, (4, 2)), label="truth")
others[-1].set_xlabel("years", fontsize=9)
shown = [*zip(*top.get_legend_handles_labels(), strict=True), (others[0].lines[-1], "truth")]
figure.legend(*zip(*shown, strict=True), loc="outside lower center", ncols=5, frameon=False, fontsize=9)
figure.savefig("trend_and_season.png", dpi=130)
print("\nwrote trend_and_season.png")
