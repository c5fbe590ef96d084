"""Write a report about a posterior as one self-contained HTML file.

The model predicts hourly bicycle rentals from calendar and weather. The data are UCI Bike Sharing (Fanaee-T and Gama
2014). The program reads bike.npz from $PATHGP_DATA or ../shared/data; if it is missing, the program generates similar
data.
"""

import os
from pathlib import Path

import numpy as np
import torch

import pathgp
from pathgp import kernels

ROWS, TEST, STEPS = 1000, 1000, 30
NAMES = ["day", "season", "year", "month", "hour", "holiday", "weekday", "working day"]
NAMES += ["weather", "temperature", "felt temperature", "humidity", "wind"]


def load() -> tuple[np.ndarray, np.ndarray]:
    """Inputs and the logarithm of the number of rentals."""
    folder = Path(os.environ.get("PATHGP_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
    if (folder / "bike.npz").exists():
        table = np.load(folder / "bike.npz")
        # Drop the first two columns (duplicates) and the last two (casual and registered users, summing to y).
        return table["X"][:, 2:15], table["y"]
    print(f"no bike.npz in {folder} (set PATHGP_DATA): made-up data take its place")
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, size=(ROWS + TEST, len(NAMES))).astype(np.float32)
    hour, working, temperature = X[:, 4], X[:, 7] > 0, X[:, 9]
    y = np.cos(3 * hour) + working * np.sin(6 * hour) + 0.5 * temperature + 0.2 * rng.normal(size=len(X))
    return X, y.astype(np.float32)


X, y = load()
shuffled = np.random.default_rng(0).permutation(len(y))
train, test = shuffled[:ROWS], shuffled[-TEST:]

kernel = kernels.Scale(kernels.Matern(nu=1.5, lengthscale=torch.ones(len(NAMES))), signal=1.0)
gp = pathgp.GP(kernel, noise=0.5, standardise=True)
fit = gp.fit(X[train], y[train], steps=STEPS, generator=torch.Generator().manual_seed(0))

gp.posterior.to_html(
    "report.html",
    X[test],
    y[test],
    names=NAMES,
    target="log rentals per hour",
    fit=fit,
    title="Bicycle rentals by the hour",
)
print(f"wrote report.html, {Path('report.html').stat().st_size / 1000:.0f} kB: open it in a browser")
