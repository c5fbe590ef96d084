"""Learn from real data: predict hourly bicycle rentals from calendar and weather.

The data are UCI Bike Sharing (Fanaee-T and Gama 2014). The program reads bike.npz from $PATHGP_DATA or ../shared/data;
if it is missing, the program generates similar data. The figure needs matplotlib.
"""

import os
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure

import pathgp
from pathgp import kernels, metrics
from pathgp.plots import draw_fit

ROWS, TEST, MADE_UP, STEPS = 2000, 1000, 300, 80
NAMES = ["day", "season", "year", "month", "hour", "holiday", "weekday", "working day"]
NAMES += ["weather", "temperature", "felt temperature", "humidity", "wind"]


def load() -> tuple[np.ndarray, np.ndarray]:
    """Inputs and the logarithm of the number of rentals."""
    folder = Path(os.environ.get("PATHGP_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
    if (folder / "bike.npz").exists():
        table = np.load(folder / "bike.npz")
        # Drop the first two columns (duplicates) and the last two (casual and registered users, summing to y).
        return table["X"][:, 2:15], table["y"]
    print(f"no bike.npz in {folder} (set PATHGP_DATA): made-up data take its place\n")
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, size=(MADE_UP + TEST, len(NAMES))).astype(np.float32)
    hour, working, temperature = X[:, 4], X[:, 7] > 0, X[:, 9]
    y = np.cos(3 * hour) + working * np.sin(6 * hour) + 0.5 * temperature + 0.2 * rng.normal(size=len(X))
    return X, y.astype(np.float32)


X, y = load()
shuffled = np.random.default_rng(0).permutation(len(y))
train, test = shuffled[:-TEST][:ROWS], shuffled[-TEST:]

kernel = kernels.Scale(kernels.Matern(nu=1.5, lengthscale=torch.ones(len(NAMES))), signal=1.0)
gp = pathgp.GP(kernel, noise=0.5, standardise=True)  # kernel and noise in units of standard deviations
report = gp.fit(X[train], y[train], steps=STEPS, progress=True, generator=torch.Generator().manual_seed(0))
print(report)

post = gp.posterior  # the fit ends with it
mean, variance = post.mean(X[test]), post.variance(X[test], noise=True)
print(f"\nheld out, {TEST} rows:")
print(f"RMSE {metrics.rmse(y[test], mean):.3f} (the standard deviation of y is {y[test].std():.3f})")
print(f"NLL {metrics.nll(y[test], mean, variance):.3f} nats per row")
print(f"{100 * metrics.coverage(y[test], mean, variance):.1f} % of the rows inside their 95 % intervals")

print("\nthe most relevant inputs, by inverse length scale:")
relevance = 1 / gp.hyperparameters()["lengthscale"]
for i in relevance.argsort(descending=True)[:5]:
    print(f"{NAMES[i]:<16} {relevance[i]:.2f}")

figure = Figure(figsize=(10, 6.5), layout="constrained")
draw_fit(figure, report, NAMES)
figure.savefig("learn_real_data.png", dpi=130)
print("\nwrote learn_real_data.png")
