"""Decide which training runs to stop: extrapolate all learning curves jointly and use joint samples.

A table of 160 neural networks by 52 epochs with truncated curves is a grid with holes. The inputs of one side are the
hyperparameters of the networks, those of the other side the logarithms of the epochs. The data are LCBench (Zimmer,
Lindauer and Hutter 2021). The program reads lcbench.npz from $PATHGP_DATA or ../shared/data; if it is missing, the
program generates similar curves. The figure needs matplotlib.
"""

import os
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

import pathgp
from pathgp import kernels, metrics
from pathgp.plots import DATA, MEAN, PATH, TRUTH, tidy

TASK, RUNS, MADE_UP, FINISHED, TOP = "Fashion-MNIST", 160, 40, 16, 10


def load() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Hyperparameters (runs, 7), epochs (52,) and validation losses (runs, 52)."""
    folder = Path(os.environ.get("PATHGP_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
    rng = np.random.default_rng(0)
    if (folder / "lcbench.npz").exists():
        z = np.load(folder / "lcbench.npz")
        some = rng.choice(len(z["X"]), RUNS, replace=False)
        X = z["X"][some].copy()
        X[:, [0, 1, 5]] = np.log(X[:, [0, 1, 5]])  # batch size, learning rate and width
        return X, z["T"][:, 0], z["Y"][list(z["names"]).index(TASK)][some]
    print(f"no lcbench.npz in {folder} (set PATHGP_DATA): made-up curves take its place\n")
    X, epochs = rng.uniform(-1, 1, size=(MADE_UP, 7)), np.arange(1.0, 53.0)
    floor = 0.4 + 0.4 * (X[:, :1] - 0.3) ** 2 + 0.2 * np.sin(3 * X[:, 1:2]) ** 2
    loss = floor + (2.3 - floor) * epochs ** -np.exp(0.7 * X[:, 2:3])
    return X, epochs, loss * np.exp(0.01 * rng.normal(size=loss.shape))


X, epochs, truth = load()
seen = np.random.default_rng(1).integers(2, 52, size=len(X))  # completed epochs of every run
seen[:FINISHED] = 52
Y = np.where(np.arange(52) < seen[:, None], truth, np.nan)
hidden = np.isnan(Y)
print(pathgp.plan_grid(*Y.shape, observed=int((~hidden).sum())), end="\n\n")

configuration = kernels.Scale(kernels.SquaredExponential(lengthscale=torch.full((7,), 2.0)), signal=1.0)
progress = kernels.SquaredExponential(lengthscale=1.0)
gp = pathgp.LatentKroneckerGP([configuration, progress], noise=0.1, standardise=True)
generator = torch.Generator().manual_seed(0)
# A loss is positive and decreases like a power of the epoch: take logarithms of both, which a stationary GP fits well.
factors = [X, np.log(epochs)]
print(gp.fit(factors, np.log(Y), samples=16, generator=generator), end="\n\n")

post = gp.condition(factors, np.log(Y), samples=256, generator=generator)
mean, std = post.mean(), np.sqrt(post.variance(noise=True))  # (runs, 52) each
draws = np.exp(post.sample())  # (256, runs, 52): every sample is a joint draw of all curves
last = np.take_along_axis(truth, seen[:, None] - 1, 1)[:, 0]
carried = np.broadcast_to(last[:, None], truth.shape)
inside = metrics.coverage(np.log(truth[hidden]), mean[hidden], std[hidden] ** 2)
print(f"the hidden {hidden.sum()} losses: RMSE {metrics.rmse(truth[hidden], np.exp(mean)[hidden]):.3f} ", end="")
print(f"(last value carried on: {metrics.rmse(truth[hidden], carried[hidden]):.3f}), ", end="")
print(f"{100 * inside:.1f} % inside their 95 % intervals\n")

# Final loss of every run in every sample: sampled for running curves, observed for finished ones.
final = draws[:, :, -1]
final[:, :FINISHED] = truth[:FINISHED, -1]
best = truth[:FINISHED, -1].min()
beats = (final < best).mean(0)
among = (final.argsort(1).argsort(1) < TOP).mean(0)  # depends on all curves, so it needs joint samples
running = np.arange(len(X)) >= FINISHED
stop = running & (among < 0.01)
place = 1 + truth[:, -1].argsort().argsort()  # true final rank, unknown to the model
saved = (52 - seen[stop]).sum() / (52 - seen[running]).sum()
good = running & (place <= TOP)
print(f"best loss of the {FINISHED} finished runs: {best:.3f}")
print(f"stop {stop.sum()} of {running.sum()} running ones, among the best {TOP} in less than 1 % of the samples;")
print(f"saves {100 * saved:.0f} % of the epochs left, loses {(stop & good).sum()} of {good.sum()} that get there\n")

order = np.flatnonzero(running)[np.argsort(-among[running], kind="stable")]
shown = [*order[:6], *order[20 : len(order) : 30]]
print(f"run  epochs    now   95 % at the end   P(beats best)  P(best {TOP})  advice   truth  place")
for run in shown:
    low, high = np.quantile(final[:, run], [0.025, 0.975])
    print(f"{run:3d}  {seen[run]:6d}  {last[run]:5.3f}   {low:5.3f} to {high:5.3f}", end="")
    print(f"  {100 * beats[run]:11.0f} %  {100 * among[run]:8.0f} %", end="")
    print(f"   {'stop' if stop[run] else 'go on':<6}  {truth[run, -1]:5.3f}  {place[run]:5d}")

figure = Figure(figsize=(11, 6.2), layout="constrained")
curves, advice = figure.subfigures(1, 2, width_ratios=[1.75, 1])
# Two promising runs, two in between, two to be stopped; of each kind those with the fewest epochs.
groups = [order[:8], order[12:30], np.flatnonzero(stop)]
chosen = [run for group in groups for run in group[np.argsort(seen[group], kind="stable")][:2]]
for run, axes in zip(chosen, curves.subplots(2, 3, sharex=True, sharey=True).T.ravel(), strict=True):
    low, high = np.exp(mean[run] - 1.96 * std[run]), np.exp(mean[run] + 1.96 * std[run])
    axes.fill_between(epochs, low, high, color=MEAN, alpha=0.15, lw=0, label="95 % band")
    axes.plot(epochs, draws[:3, run].T, color=PATH, lw=0.7, label=["3 samples", None, None])
    axes.plot(epochs, np.exp(mean[run]), color=MEAN, lw=1.4, label="median")
    axes.plot(epochs, np.where(hidden[run], truth[run], np.nan), color=TRUTH, lw=1.2, ls=(0, (3, 1.5)), label="hidden")
    axes.plot(epochs, Y[run], ".", color="black", ms=4, mew=0, label="seen")
    axes.axhline(best, color=DATA, lw=0.8, ls=":", label="best so far")
    verdict = "stop" if stop[run] else "go on"
    axes.set_title(f"run {run}: best {TOP} with {100 * among[run]:.0f} %, {verdict}", loc="left", fontsize=9)
    axes.set(xscale="log", yscale="log")
    axes.xaxis.set(major_locator=FixedLocator([1, 5, 20, 52]), major_formatter="{x:g}", minor_locator=NullLocator())
    axes.yaxis.set(major_locator=FixedLocator([0.3, 0.5, 1, 2]), major_formatter="{x:g}", minor_locator=NullLocator())
    tidy(axes)
    axes.set_xlabel("epoch" if axes.get_subplotspec().is_last_row() else "", fontsize=9)
curves.supylabel("validation loss", fontsize=9)
curves.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=6, frameon=False, fontsize=8)
axes = advice.subplots()
low, middle, high = np.quantile(final, [0.025, 0.5, 0.975], axis=0)
ranked = np.flatnonzero(running)[np.argsort(middle[running])]
for verdict, colour, label in [(False, MEAN, "go on"), (True, DATA, "stop")]:
    rows = np.flatnonzero(stop[ranked] == verdict)
    axes.hlines(rows, low[ranked[rows]], high[ranked[rows]], color=colour, lw=1.5, alpha=0.5, label=label)
axes.plot(truth[ranked, -1], np.arange(len(ranked)), ".", color=TRUTH, ms=3.5, mew=0, label="hidden truth")
axes.axvline(best, color=DATA, lw=0.8, ls=":", label="best so far")
axes.set(xscale="log", yticks=[], ylim=(len(ranked), -1))
axes.xaxis.set(major_locator=FixedLocator([0.3, 0.5, 1, 2]), major_formatter="{x:g}", minor_locator=NullLocator())
axes.set_xlabel("validation loss", fontsize=9)
axes.set_title(f"where {len(ranked)} running curves end, 95 % intervals", loc="left", fontsize=9)
tidy(axes)
advice.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=8)
figure.savefig("learning_curves.png", dpi=130)
print("\nwrote learning_curves.png")
