"""Figure 6.4: learning curves of Fashion-MNIST, extrapolated by LKGP, SVGP and VNNGP."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import pathgp
from benchmarks.common.drawing import COLOURS, grid, legend, save
from benchmarks.common.recording import device_name
from benchmarks.peers.baselines import Baseline, run_baseline
from benchmarks.thesis.lcbench_curves import Curves, curves, model
from benchmarks.thesis.size import Size
from pathgp import plots

TITLE = "Extrapolation of learning curves"
TEXT = """\
Curves of Fashion-MNIST that end early (dots), their continuation (grey), and the mean with two standard deviations of
three models: `LatentKroneckerGP`, and SVGP and VNNGP of GPyTorch with the same kernels and the same seconds. In the
seconds of a CPU the baselines take few steps, and VNNGP has hardly begun to learn: the picture shows what each has by
then. CaGP, the thesis's fourth model, is in no release of GPyTorch.

The third row is the curve that differs most from the others, and all three models fail on it. The mean of ours falls
towards the other curves soon after the last observed value, and the continuation lies above its band."""
CPU_ROWS = 250
INDUCING, NEIGHBOURS, SKIPPED = 500, 32, 3

Prediction = tuple[Tensor, Tensor]


def draw(path: Path, size: Size) -> dict[str, Any]:
    data = curves("Fashion-MNIST", 0, size.rows, device=device_name())
    ours, seconds = latent_kronecker(data, size)
    points, neighbours = size.pick((INDUCING, NEIGHBOURS), (20, 4))
    baselines = {"SVGP": Baseline("svgp", points), "VNNGP": Baseline("vnngp", neighbours)}
    found = {"LKGP (ours)": ours}
    for name, baseline in baselines.items():
        found[name] = run(data, baseline, size.pick(seconds, 0.1))
    chosen = choose(data)
    figure, axes = grid(len(chosen), len(found), width=12, height=2.3, sharex=True)
    epochs = range(1, data.Y.shape[1] + 1)
    for column, (name, prediction) in enumerate(found.items()):
        axes[0, column].set_title(name if prediction else f"{name}: failed", fontsize=9, loc="left")
        for row, curve in enumerate(chosen):
            panel, seen = axes[row, column], int(data.observed[curve].sum())
            truth = data.Y[curve].cpu()
            panel.plot(epochs, truth, color="#8a8a94", lw=1.0, label="continuation")
            panel.plot(epochs[:seen], truth[:seen], ".", color=plots.INK, ms=4, label="observed")
            if prediction:
                mean, half = prediction[0][curve].cpu(), 2.0 * prediction[1][curve].sqrt().cpu()
                panel.plot(epochs, mean, color=COLOURS[column], lw=1.5, label="mean, two standard deviations")
                panel.fill_between(epochs, mean - half, mean + half, color=COLOURS[column], alpha=0.15, lw=0)
            # The first epochs of most curves lie far above the others.
            means = [part[0][curve, SKIPPED:].cpu() for part in found.values() if part]
            shown = torch.cat([truth[SKIPPED:], *means])
            pad = 0.3 * float(shown.max() - shown.min()) + 0.3
            panel.set_ylim(float(shown.min()) - pad, float(shown.max()) + pad)
    for panel in axes[-1]:
        panel.set_xlabel("epoch", fontsize=9)
    legend(figure, axes[0, 0])
    save(figure, path)
    return {"curves": len(data.Y), "steps": size.steps, "seconds of each": seconds}


def latent_kronecker(data: Curves, size: Size) -> tuple[Prediction, float]:
    """Mean and variance of new observations on the whole grid, and the seconds of the fit."""
    gp, generator = model(data), torch.Generator().manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pathgp.ConvergenceWarning)
        warnings.simplefilter("ignore", pathgp.LongFitWarning)
        options: dict[str, Any] = {"samples": size.pick(64, 4), "generator": generator}
        options |= {"steps": size.steps, "stages": "full"} if size.quick else {}
        report = gp.fit([data.X, data.T], data.given, **options)
    return (gp.posterior.mean(), gp.posterior.variance(noise=True)), report.seconds


def run(data: Curves, baseline: Baseline, seconds: float) -> Prediction | None:
    """The same for a baseline; None if it fails."""
    new = data.inputs(torch.ones_like(data.observed))
    given = data.inputs(data.observed), data.Y[data.observed]
    _, found = run_baseline(baseline, data.gpytorch_kernel, *given, [new], seconds=seconds)
    return (found[0][0].view_as(data.Y), found[0][1].view_as(data.Y)) if found else None


def choose(data: Curves) -> list[int]:
    """Two typical curves that end after a quarter and after a half of the epochs, and the least typical one."""
    seen, length = data.observed.sum(1), data.Y.shape[1]
    away = (data.Y - data.Y.median(0).values).abs().mean(1)
    typical = [int((away + (seen - share * length).abs() * 10.0).argmin()) for share in (0.25, 0.5)]
    partly = (seen > length // 8) & (seen < length // 2)
    return [*typical, int(torch.where(partly, away, -math.inf).argmax())]
