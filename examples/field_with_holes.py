"""Fill a climate field with holes: sea-surface temperatures of the tropical Pacific at the onset of an El Niño.

The grid has 1,043 places by 24 months. A third of the values is missing at random. In addition, all values in a
rectangle of the central Pacific are missing for seven months of 1997. The data are monthly anomalies of the NOAA
Climate Prediction Center (from Wikle, Zammit-Mangion and Cressie 2019). The program reads pacific_sst.npz from
$PATHGP_DATA or ../shared/data; if it is missing, the program generates a similar field. The figure needs matplotlib.
"""

import os
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure

import pathgp
from pathgp import kernels, metrics

FIRST, MONTHS, STEPS = 318, 24, 20  # July 1996 to June 1998, counted from January 1970
SHOWN = 329  # June 1997


def load() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Places as (latitude, longitude), months, and anomalies in °C, (places, months)."""
    folder = Path(os.environ.get("PATHGP_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
    if (folder / "pacific_sst.npz").exists():
        z = np.load(folder / "pacific_sst.npz")
        near = (np.abs(z["S"][:, 0]) < 16) & (z["S"][:, 1] > 150)
        return z["S"][near], z["T"][FIRST : FIRST + MONTHS, 0], z["Y"][near, FIRST : FIRST + MONTHS]
    print(f"no pacific_sst.npz in {folder} (set PATHGP_DATA): a made-up field takes its place\n")
    rng = np.random.default_rng(0)
    lat, lon = np.meshgrid(np.arange(-15.0, 16, 4), np.arange(152.0, 291, 8), indexing="ij")
    S, T = np.stack([lat.ravel(), lon.ravel()], 1), FIRST + np.arange(MONTHS, dtype=float)
    roots = [np.linalg.cholesky(k(torch.tensor(x)).detach().numpy()) for k, x in [(space(), S), (time(), T[:, None])]]
    return S, T, roots[0] @ rng.normal(size=(len(S), MONTHS)) @ roots[1].T + 0.1 * rng.normal(size=(len(S), MONTHS))


def space() -> kernels.Kernel:
    return kernels.Scale(kernels.Matern(nu=1.5, lengthscale=[8.0, 15.0]), signal=1.0)  # degrees


def time() -> kernels.Kernel:
    return kernels.Matern(nu=1.5, lengthscale=3.0)  # months


S, T, truth = load()
hole = (np.abs(S[:, :1]) < 8) & (S[:, 1:] > 200) & (S[:, 1:] < 240) & (T > SHOWN - 4) & (T < SHOWN + 4)
Y = np.where(hole | (np.random.default_rng(0).random(truth.shape) < 0.33), np.nan, truth)
missing = np.isnan(Y)
print(pathgp.plan_grid(*Y.shape, observed=int((~missing).sum())), end="\n\n")

gp = pathgp.LatentKroneckerGP([space(), time()], noise=0.1)
generator = torch.Generator().manual_seed(0)
# Every third place is enough to learn three length scales, a signal and the noise.
print(gp.fit([S[::3], T], Y[::3], steps=STEPS, samples=8, generator=generator), end="\n\n")
post = gp.condition([S, T], Y, samples=64, generator=generator)
print(post.report, end="\n\n")

mean, variance, draw = post.mean(), post.variance(noise=True), post.sample(num=1)[0]
anywhere = missing & ~hole
print("                  values   std of the field    RMSE     NLL   inside 95 %")
for name, part in [("held out, spread", anywhere), ("held out, hole", hole)]:
    y, m, v = truth[part], mean[part], variance[part]
    print(f"{name:<16}  {part.sum():6d}   {y.std():16.3f}   {metrics.rmse(y, m):5.3f}", end="")
    print(f"   {metrics.nll(y, m, v):5.2f}   {100 * metrics.coverage(y, m, v):9.1f} %")

month = int(SHOWN - T[0])
lat, lon = (np.unique(S[:, i]) for i in (0, 1))
rows, columns = np.searchsorted(lat, S[:, 0]), np.searchsorted(lon, S[:, 1])
figure = Figure(figsize=(11, 6.4), layout="constrained")
panels = figure.subplots(3, 2, sharex=True, sharey=True)
largest = float(np.abs(truth[:, month]).max())
shown = [
    ("what is seen", Y, "RdBu_r"),
    ("the truth", truth, "RdBu_r"),
    ("posterior mean", mean, "RdBu_r"),
    ("one posterior sample", draw, "RdBu_r"),
    ("standard deviation of the field", np.sqrt(post.variance()), "viridis"),
    ("error of the mean, in standard deviations", (truth - mean) / np.sqrt(variance), "PuOr_r"),
]
for axes, (title, field, colours) in zip(panels.ravel(), shown, strict=True):
    image = np.full((len(lat), len(lon)), np.nan)
    image[rows, columns] = field[:, month]
    limits = {"RdBu_r": (-largest, largest), "PuOr_r": (-4, 4), "viridis": (0, None)}[colours]
    axes.set_facecolor("#d9d9de")
    mesh = axes.pcolormesh(lon, lat, image, cmap=colours, vmin=limits[0], vmax=limits[1], rasterized=True)
    axes.plot([200, 240, 240, 200, 200], [-8, -8, 8, 8, -8], color="black", lw=0.8)
    axes.set_title(title, loc="left", fontsize=9)
    axes.tick_params(labelsize=8, length=2)
    bar = figure.colorbar(mesh, ax=axes, pad=0.01, aspect=12)
    bar.ax.tick_params(labelsize=8, length=2)
    bar.outline.set_visible(False)
for axes in panels[-1]:
    axes.set_xlabel("degrees east", fontsize=8)
figure.savefig("field_with_holes.png", dpi=130)
print("\nwrote field_with_holes.png")
