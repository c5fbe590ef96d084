"""Fill in the missing values of weather stations: ten years of monthly temperatures.

The grid has 376 stations in and around Colorado by 120 months. Four in ten cells are empty, and a further tenth of the
values is held out to measure the error. Season and elevation are a mean function fitted by least squares; the rest is a
Gaussian process over (latitude, longitude, elevation) and time. The data are the Colorado Monthly Meteorological Data
(NCAR, from stations of the NCDC). The program reads colorado_monthly_met.npz from $PATHGP_DATA or ../shared/data; if it
is missing, the program generates a smaller table. The figure needs matplotlib.
"""

import os
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure

import pathgp
from pathgp import kernels, metrics

FIRST, LAST, STEPS = 1980, 1990, 25


def load() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Stations as (latitude, longitude, elevation in m), decimal years, and temperatures in °C with NaN for holes."""
    folder = Path(os.environ.get("PATHGP_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
    if (folder / "colorado_monthly_met.npz").exists():
        z = np.load(folder / "colorado_monthly_met.npz")
        chosen = (z["T"][:, 0] > FIRST) & (z["T"][:, 0] < LAST)
        return z["S"].astype(float), z["T"][chosen, 0], z["Y"][:, chosen].astype(float)
    print(f"no colorado_monthly_met.npz in {folder} (set PATHGP_DATA): a made-up table takes its place\n")
    rng = np.random.default_rng(0)
    S = rng.uniform([36.5, -109.5, 800.0], [41.5, -101.0, 3500.0], size=(60, 3))
    T = FIRST + (np.arange(60) + 0.5) / 12
    sides = [(space(), S), (time(), T[:, None])]
    left, right = (np.linalg.cholesky(k(torch.tensor(x)).detach().numpy() + 1e-9 * np.eye(60)) for k, x in sides)
    Y = 25 - 0.006 * S[:, 2:] - 12 * np.cos(2 * np.pi * T) + left @ rng.normal(size=(60, 60)) @ right.T
    age, closed = T - rng.uniform(FIRST - 4, FIRST + 4, size=(60, 1)), rng.uniform(1, 8, size=(60, 1))
    works = (age > 0) & (age < closed) & (rng.random(Y.shape) < 0.95)
    return S, T, np.where(works, Y + 0.5 * rng.normal(size=Y.shape), np.nan)


def space() -> kernels.Kernel:
    return kernels.Scale(kernels.Matern(nu=1.5, lengthscale=[2.0, 2.0, 1000.0]), signal=2.0)  # degrees, degrees, m


def time() -> kernels.Kernel:
    """Sum of month-to-month weather, with a short length scale, and the lasting climate of a place."""
    return kernels.Scale(kernels.Matern(nu=0.5, lengthscale=0.1), 0.7) + kernels.SquaredExponential(lengthscale=20.0)


def columns(X: torch.Tensor) -> torch.Tensor:
    """Basis functions of the mean at (latitude, longitude, elevation, year): place, season and their interaction."""
    lat, lon, height = X[:, 0] - 39, X[:, 1] + 105, X[:, 2] / 1000 - 2
    waves = [f(2 * np.pi * h * X[:, 3]) for h in (1, 2) for f in (torch.cos, torch.sin)]
    return torch.stack([torch.ones_like(lat), lat, lon, height, *waves, height * waves[0], height * waves[1]], 1)


S, T, Y = load()
p, q = Y.shape
rng = np.random.default_rng(0)
held_out = ~np.isnan(Y) & (rng.random(Y.shape) < 0.1)
seen = np.where(held_out, np.nan, Y)
print(pathgp.plan_grid(p, q, observed=int((~np.isnan(seen)).sum())), end="\n\n")

cells = torch.tensor(np.concatenate([np.repeat(S, q, 0), np.tile(T[:, None], (p, 1))], 1))
known = torch.tensor(~np.isnan(seen).ravel())
coefficients = torch.linalg.lstsq(columns(cells[known]), torch.tensor(seen.ravel())[known, None]).solution[:, 0]


def climate(X: torch.Tensor) -> torch.Tensor:
    return columns(X) @ coefficients


gp = pathgp.LatentKroneckerGP([space(), time()], noise=0.7, mean=climate)
generator = torch.Generator().manual_seed(0)
# Every third station is enough to learn from.
print(gp.fit([S[::3], T], seen[::3], steps=STEPS, samples=8, generator=generator), end="\n\n")
post = gp.condition([S, T], seen, generator=generator)
print(post.report, end="\n\n")

mean, variance = post.mean(), post.variance(noise=True)
y, m, v = Y[held_out], mean[held_out], variance[held_out]
plain = climate(cells).numpy().reshape(p, q)[held_out]
print(f"{held_out.sum()} values held out: RMSE {metrics.rmse(y, m):.2f} °C", end="")
print(f" ({metrics.rmse(y, plain):.2f} for season and place alone),", end=" ")
print(f"{100 * metrics.coverage(y, m, v):.1f} % inside their 95 % intervals")

order, shown = np.argsort(S[:, 2]), slice(2 * q // 5, 2 * q // 5 + 48)  # four years from the middle
panels = [
    ("measured, °C (grey: nothing)", Y, "RdYlBu_r"),
    ("posterior mean, °C", mean, "RdYlBu_r"),
    ("posterior standard deviation, °C", np.sqrt(post.variance()), "viridis"),
]
low, high = np.nanquantile(Y, [0.001, 0.999])
figure = Figure(figsize=(11, 4.4), layout="constrained")
for axes, (title, field, colours) in zip(figure.subplots(1, 3, sharey=True), panels, strict=True):
    limits = (0, None) if colours == "viridis" else (low, high)
    axes.set_facecolor("#d9d9de")
    months = T[shown]
    years = np.append(months - 1 / 24, months[-1] + 1 / 24)
    image = field[order][:, shown]
    mesh = axes.pcolormesh(years, np.arange(p + 1), image, cmap=colours, vmin=limits[0], vmax=limits[1])
    axes.set_title(title, loc="left", fontsize=9)
    axes.tick_params(labelsize=8, length=2)
    axes.set_xticks(np.arange(np.ceil(years[0]), years[-1]))
    bar = figure.colorbar(mesh, ax=axes, pad=0.01, aspect=30)
    bar.ax.tick_params(labelsize=8, length=2)
    bar.outline.set_visible(False)
    if axes.get_subplotspec().is_first_col():
        axes.set_ylabel("stations, from low to high", fontsize=8)
figure.savefig("fill_weather_stations.png", dpi=110)
print("\nwrote fill_weather_stations.png")
