"""Figure 3.6: one step of Thompson sampling with a single input."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.common.drawing import COLOURS, grid, legend, save
from benchmarks.thesis.size import Size
from pathgp import GP, kernels, plots
from pathgp.decisions import maximise_paths

TITLE = "One step of Thompson sampling"
TEXT = """\
Three posterior functions, each maximised from the best of its nearby locations. Left: nearby locations, drawn around
good observations and uniformly. Middle: the best of them for every function. Right: their maxima after gradient ascent,
where the target is evaluated next. `pathgp.decisions.maximise_paths` does this for thousands of functions; see
[Thompson sampling](../guides/thompson.md)."""
FUNCTIONS, NEARBY, TOP = 3, 7, 3


def draw(path: Path, size: Size) -> dict[str, Any]:
    rng, generator = np.random.default_rng(3), torch.Generator().manual_seed(7)
    target = GP(kernels.Matern(1.5, 0.25)).prior(1, 2000, torch.Generator().manual_seed(11))
    X = np.array([0.08, 0.2, 0.36, 0.52, 0.9])[:, None]
    y = np.asarray(target(X))[0]
    post = GP(kernels.Matern(1.5, 0.25), noise=0.02).condition(X, y, samples=FUNCTIONS, generator=generator)
    near = X[rng.choice(len(X), NEARBY - 1, p=np.exp(y) / np.exp(y).sum()), 0] + rng.normal(0, 0.1, NEARBY - 1)
    near = np.append(np.clip(near, 0, 1), rng.uniform())
    search: dict[str, Any] = {"starts": TOP, "proposals": 200, "steps": 100, "generator": generator}
    chosen, values = (np.asarray(part) for part in maximise_paths(post, np.array([[0.0], [1.0]]), **search))
    at_near = np.asarray(post.paths(near[:, None]))
    figure, axes = grid(1, 3, width=12, height=2.8, sharey=True)
    x = np.linspace(0, 1, 400)
    curves = np.asarray(post.paths(x[:, None]))
    titles = ("nearby locations", "the best nearby locations", "maxima, evaluated next")
    for number, (panel, title) in enumerate(zip(axes[0], titles, strict=True)):
        panel.set_title(title, fontsize=9, loc="left")
        panel.plot(X[:, 0], y, "o", color=plots.INK, ms=4, label="data", zorder=5)
        for j, colour in enumerate(COLOURS[:FUNCTIONS]):
            panel.plot(x, curves[j], color=colour, lw=1.2, label=f"function {j + 1}")
            if number < 2:
                best = np.argsort(-at_near[j])[: NEARBY if number == 0 else TOP]
                panel.plot(near[best], at_near[j, best], "x", color=colour, ms=5)
            else:
                panel.plot(chosen[j], values[j], "*", color=colour, ms=11)
                panel.axvline(float(chosen[j, 0]), color=colour, lw=0.8, ls=":")
    panel.plot(x, np.asarray(target(x[:, None]))[0], color=plots.INK, lw=0.9, ls=(0, (4, 2)), label="target")
    legend(figure, panel)
    save(figure, path)
    return {"functions": FUNCTIONS, "nearby locations": NEARBY, "starts per function": TOP}
