"""Map a field from stations: mean precipitation of December in South America, from 900 places on land.

The mean, its standard deviation, the probability of more than 5 mm a day, and the variogram. The values are those of
the CRU climatology 1961-1990 on half-degree cells, as used by Gyger, Furrer and Sigrist (2025): 900 cells play the
stations, the others check the map. The program reads precip_cru.npz from $PATHGP_DATA or ../shared/data; if it is
missing, the program generates a similar field. The figure needs matplotlib.
"""

import os
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure

from pathgp import metrics
from pathgp.kriging import krige

THRESHOLD = 5.0  # mm a day


def load() -> tuple[np.ndarray, np.ndarray, int, float]:
    """Longitudes and latitudes (n, 2), values, the number of stations, and the step of the grid in degrees."""
    folder = Path(os.environ.get("PATHGP_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
    if (folder / "precip_cru.npz").exists():
        z = np.load(folder / "precip_cru.npz")
        places = np.stack([z["lon"], z["lat"]], 1).astype(float)
        near = (places[:, 0] > -85) & (places[:, 0] < -30) & (places[:, 1] < 13)
        return places[near], z["y"][near].astype(float), 900, 0.5
    print(f"no precip_cru.npz in {folder} (set PATHGP_DATA): a made-up field takes its place\n")
    rng = np.random.default_rng(0)
    places = np.stack([rng.uniform(-80, -35, 300), rng.uniform(-50, 12, 300)], 1)
    wet = 8 * np.exp(-((places[:, 0] + 62) ** 2 + (places[:, 1] + 5) ** 2) / 250)
    return places, 1 + wet + np.sin(places[:, 0] / 4) + 0.2 * rng.normal(size=300), 150, 3.0


places, rain, stations, step = load()
order = np.random.default_rng(1).permutation(len(rain))
known, hidden = order[:stations], order[stations:]

# Columns called lon and lat are positions on the globe.
gauges = pd.DataFrame({"lon": places[known, 0], "lat": places[known, 1], "rain": rain[known]})
result = krige(gauges, "rain", grid=step, generator=torch.Generator().manual_seed(0))
print(result, end="\n\n")
print("every station predicted from all others:", result.cross_validation, sep="\n", end="\n\n")

# The same posterior at other places: those that were left out.
check = result.at(places[hidden])
variance = check.std**2 + result.nugget**2
print(f"RMSE {metrics.rmse(rain[hidden], check.mean):.3f}, CRPS {metrics.crps(rain[hidden], check.mean, variance):.3f}")
print(f"{100 * metrics.coverage(rain[hidden], check.mean, variance):.1f} % inside their 95 % intervals")

# Simulations are joint: the mean of a whole region, with its uncertainty.
north = places[hidden][places[hidden][:, 1] > -5]
totals = result.simulate(north).mean(1)
print(f"mean north of 5°S: {totals.mean():.2f} ± {totals.std():.2f}, from {len(totals)} simulations")

figure = Figure(figsize=(12.6, 4.4), layout="constrained")
maps, curve = figure.subfigures(1, 2, width_ratios=(3, 1.1))
result.plot(threshold=THRESHOLD, figure=maps)
result.variogram.plot(curve.subplots())
figure.savefig("map_of_rain.png", dpi=110)
print("map_of_rain.png")
