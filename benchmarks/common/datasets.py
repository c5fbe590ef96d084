"""Read public data sets by name from local files and verify their checksums; nothing is downloaded.

    data = load("bike")                               # bike.npz in $PATHGP_DATA, or in ../shared/data of a checkout
    X, y, X_test, y_test = data.split(0)

Every known set has a description, its source, its licence as far as it is known, and the SHA-256 checksum of its file.
If a file is missing, the benchmark ends with a one-line message (`MissingData`).
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_UCI = "https://github.com/treforevans/uci_datasets (commit f0737523)"
_CC_BY = "CC BY 4.0"
_UNKNOWN = "not stated by the source"
_STATISTICS_WITH_R = "https://github.com/andrewzm/STRbook (Wikle, Zammit-Mangion & Cressie 2019)"
# What a file holds.
_TABLE, _GRID, _IMAGE, _MOLECULES = "table", "grid", "image", "molecules"


@dataclass(frozen=True)
class Known:
    """What is known of a data set before its file is there.

    shape: (n, d) of a table, the number of cells along each side of a grid, (n, 1024) of molecules.
    """

    kind: str
    shape: tuple[int, ...]
    target: str
    origin: str
    source: str
    licence: str
    sha256: str


@dataclass(frozen=True)
class Dataset:
    """A data set. Tables have ``X`` and ``y``, grids have ``factors`` and ``Y``.

    name, description, source, licence: what it is and where it comes from.
    columns: the names of the inputs: of X, or of the factors one after the other; x1, x2, ... where none are known.
    X: inputs (n, d). Of molecules, counts of 1,024 fragments, a sparse matrix of SciPy: ``X[rows].toarray()``.
    y: targets (n,), or (n, outputs).
    factors: the inputs of the sides of a grid, (p_i, d_i) each.
    Y: the values on the grid, NaN where one is missing. Of several grids with the same sides the first dimension counts
        the grids.
    test_mask: (n, splits), True for the test rows of the official splits, where there are such.
    extra: the other arrays of the file, by name.
    """

    name: str
    description: str
    source: str
    licence: str
    columns: list[str]
    X: Any = None
    y: NDArray[Any] | None = None
    factors: list[NDArray[Any]] | None = None
    Y: NDArray[Any] | None = None
    test_mask: NDArray[np.bool_] | None = None
    extra: dict[str, NDArray[Any]] = field(default_factory=dict)

    def split(self, number: int = 0) -> tuple[Any, Any, Any, Any]:
        """X, y, X_test, y_test of an official split, as in the file: standardise with the training rows."""
        if self.test_mask is None or self.y is None:
            raise ValueError(f"{self.name} has no official splits: draw the test rows yourself")
        if not 0 <= number < self.test_mask.shape[1]:
            raise ValueError(f"{self.name} has the splits 0 to {self.test_mask.shape[1] - 1}, got {number}")
        test = self.test_mask[:, number]
        return self.X[~test], self.y[~test], self.X[test], self.y[test]

    def __repr__(self) -> str:
        arrays = {"X": self.X, "y": self.y, "Y": self.Y, "test_mask": self.test_mask, **self.extra}
        shapes = [f"{name} {array.shape}" for name, array in arrays.items() if array is not None]
        if self.factors is not None:
            shapes.insert(0, "factors " + ", ".join(str(factor.shape) for factor in self.factors))
        lines = [("name", self.name), ("description", self.description), ("arrays", ", ".join(shapes))]
        shown = self.columns if len(self.columns) <= 10 else [*self.columns[:8], "...", self.columns[-1]]
        lines += [("columns", ", ".join(shown)), ("source", self.source), ("licence", self.licence)]
        return "\n".join(f"{name:<11}  {value}" for name, value in lines)


class MissingData(SystemExit):
    """A data file is missing: ends a program with one line that says where the data comes from."""


def find(file: str) -> Path:
    """Path of a file in the data folder: $PATHGP_DATA, or shared/data beside the checkout."""
    given = os.environ.get("PATHGP_DATA")
    folder = Path(given) if given else Path(__file__).resolve().parents[3] / "shared" / "data"
    path = folder / file
    if path.is_file():
        return path
    reason = f"{file} is not in {folder}, and nothing is downloaded: put it into a folder and name that in PATHGP_DATA"
    if known := KNOWN.get(path.stem):
        sides = " x ".join(f"{side:,}" for side in known.shape)
        reason += f". It holds {_LAYOUT[known.kind]} ({sides}; {known.origin}) from {known.source}"
    raise MissingData(reason)


def load(name: str, check: bool = True) -> Dataset:
    """Read a data set by its name.

    Args:
        name: a key of `KNOWN`.
        check: refuse a file whose SHA-256 checksum differs from the known one. False reads a file that you made from
            the source yourself.

    Raises:
        MissingData: the file is not in the data folder.
        ValueError: unknown name, or a file with another checksum.
    """
    if name not in KNOWN:
        raise ValueError(f"no data set is called {name!r}: there are {', '.join(KNOWN)}")
    known = KNOWN[name]
    path = find(f"{name}.npz")
    if check:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != known.sha256:
            raise ValueError(
                f"{path} has the checksum {digest[:12]}..., {name} has {known.sha256[:12]}...: it is damaged, or "
                f"another file. Get it again; load({name!r}, check=False) reads one that you prepared yourself"
            )
    with np.load(path, allow_pickle=False) as file:
        arrays = {key: file[key] for key in file.files}
    try:
        parts = _PARTS[known.kind](arrays)
    except KeyError as error:
        raise ValueError(f"{path} has no array {error}: expected are {_LAYOUT[known.kind]}") from None
    return Dataset(name, f"{known.target}; {known.origin}", known.source, known.licence, **parts, extra=arrays)


def _table(arrays: dict[str, Any]) -> dict[str, Any]:
    X = arrays.pop("X")
    columns = arrays.pop("columns").tolist() if "columns" in arrays else [f"x{i + 1}" for i in range(X.shape[1])]
    y = arrays.pop("y") if "y" in arrays else arrays.pop("Y")
    return {"columns": columns, "X": X, "y": y, "test_mask": arrays.pop("test_mask", None)}


def _grid(arrays: dict[str, Any]) -> dict[str, Any]:
    if "S" in arrays:
        first = arrays.pop("S")
        columns = [*["latitude", "longitude", "elevation"][: first.shape[1]], "time"]
    else:
        first = arrays.pop("X")
        columns = [*arrays.pop("columns").tolist(), "epoch"]
    return {"columns": columns, "factors": [first, arrays.pop("T")], "Y": arrays.pop("Y")}


def _image(arrays: dict[str, Any]) -> dict[str, Any]:
    sides = [arrays.pop(name)[:, None] for name in ("lat", "lon")]
    return {"columns": ["latitude", "longitude"], "factors": sides, "Y": arrays.pop("Y")}


def _molecules(arrays: dict[str, Any]) -> dict[str, Any]:
    from scipy.sparse import csr_matrix

    counts, places, ends = (arrays.pop(f"fp_{part}") for part in ("data", "indices", "indptr"))
    X = csr_matrix((counts.astype(np.float32), places.astype(np.int32), ends), shape=(len(ends) - 1, 1024))
    return {"columns": [f"fragment {i}" for i in range(1024)], "X": X, "y": arrays.pop("y")}


_PARTS = {_TABLE: _table, _GRID: _grid, _IMAGE: _image, _MOLECULES: _molecules}
_LAYOUT = {
    _TABLE: "the arrays X and y",
    _GRID: "the arrays S (or X), T and Y",
    _IMAGE: "the arrays lat, lon and Y",
    _MOLECULES: "the arrays y, smiles, fp_data, fp_indices and fp_indptr",
}

KNOWN: dict[str, Known] = {
    "pol": Known(
        _TABLE,
        (15_000, 26),
        "value of a telecommunication pole, centred",
        "Pole Telecomm (Weiss & Indurkhya 1995)",
        _UCI,
        _UNKNOWN,
        "42ca75d8ac4d41cd2dc8cb26fbd60a086a5c708e5aa99885822bd111e095507a",
    ),
    "elevators": Known(
        _TABLE,
        (16_599, 18),
        "control of an aircraft's elevators, centred",
        "Elevators (R. Camacho 1998)",
        _UCI,
        _UNKNOWN,
        "7cb2d418eb2510086668e7a4576ad6444a040eafcf80fcdcc2d7243689f96d79",
    ),
    "bike": Known(
        _TABLE,
        (17_379, 17),
        "log of the bicycles rented in an hour, centred",
        "Bike Sharing (Fanaee-T & Gama 2014); inputs 16 and 17 are counts whose sum is the target's",
        _UCI,
        _CC_BY,
        "d1d0f4befd207eebc1ba4f5d8790fee6e8ed08e9f98901a4b456494e04c3d380",
    ),
    "protein": Known(
        _TABLE,
        (45_730, 9),
        "log(1 + RMSD) of protein structures, centred",
        "Physicochemical Properties of Protein Tertiary Structure (Rana 2013)",
        _UCI,
        _CC_BY,
        "a96581bef1f85dad44ce65839fb9d784cfb0ae02b8366ba4166d059588421c25",
    ),
    "keggdirected": Known(
        _TABLE,
        (48_827, 20),
        "a statistic of metabolic networks, as the source transforms it",
        "KEGG Metabolic Relation Network, directed (Naeem & Asghar 2011)",
        _UCI,
        _CC_BY,
        "0440a6e4cecb83b34ba7d516c3fd24f0506486ec10907e2445f935ad9dab45bd",
    ),
    "kin40k": Known(
        _TABLE,
        (40_000, 8),
        "distance of a robot arm's end, simulated",
        "KIN40K (A. Schwaighofer; the DELVE family kin)",
        _UCI,
        _UNKNOWN,
        "d122d2fe8db962629a1523df9c63d8147623901a543a5da391b77ea0e92a102d",
    ),
    "flights3m": Known(
        _TABLE,
        (3_000_000, 8),
        "arrival delay in minutes, in the order of dates",
        "on-time performance, January to June 2001 (U.S. Bureau of Transportation Statistics)",
        "npm package vega-datasets 3.2.1: flights-3m.parquet and airports.csv",
        "data of the U.S. government, package BSD-3-Clause",
        "40d2fdecc2c29ca8bac13735f7f6395ef099878eaaa9d6cd7079ff2fa7c539a4",
    ),
    "kaust2a_1": Known(
        _TABLE,
        (90_000, 3),
        "a draw of a Gaussian space-time field by x, y and time; 10,000 test rows at new places",
        "Second Competition on Spatial Statistics for Large Datasets, 2a (Abdulah et al. 2022)",
        "https://github.com/TimGyger/SpaceTimeGPApprox (commit 8ea2e476)",
        _UNKNOWN,
        "64f245c7e40906d6a7cf0e7bea9ba70b37a008d9d5b89326af7281a7e54c2759",
    ),
    "houseelectric_first40k": Known(
        _TABLE,
        (40_959, 9),
        "active power of a household in kW, by the minute",
        "Individual Household Electric Power Consumption (Hebrail & Bérard 2012), its first 2 %",
        "https://github.com/juliusmarkwei/Project-E-Data (commit 9aa3c351)",
        _CC_BY,
        "0b5044da886cc36cc50880f7914b4cd633140dfa0a150bb0e994b12e81cc8801",
    ),
    "house_submeter": Known(
        _TABLE,
        (405_537, 1),
        "three sub-meters of a household in Wh a minute, by time",
        "Individual Household Electric Power Consumption (Hebrail & Bérard 2012), its last fifth",
        "https://github.com/predict-idlab/plotly-resampler (commit fbd64065)",
        _CC_BY,
        "a81ec7a8a015b799873f5bd5516328ea83e96528473104628393ed7542e5d364",
    ),
    "precip_ciq": Known(
        _TABLE,
        (101_270, 3),
        "annual standardised precipitation anomaly",
        "precipitation on a 2.5° grid, 2010 to 2019 (Pleiss et al. 2020)",
        "https://github.com/gpleiss/ciq_experiments (commit 8a973ca1)",
        "Apache-2.0",
        "1625dfd18804ad7c7d5deb89cd42511ad58970c5e43be00dec253e97a15c4b30",
    ),
    "sarcos_test": Known(
        _TABLE,
        (4449, 21),
        "torque at a robot's first joint; all seven are in extra",
        "SARCOS inverse dynamics, the test file alone (Vijayakumar & Schaal)",
        "https://github.com/Kaixhin/SARCOS (commit bd4800d9)",
        _UNKNOWN,
        "d2126de330059aa7e7afe738cb78d2f213e7b8e3052bbab25efb085ba7ad5e0e",
    ),
    "lcbench": Known(
        _GRID,
        (2000, 52),
        "cross-entropy by configuration and epoch, 35 grids",
        "LCBench (Zimmer, Lindauer & Hutter 2021)",
        "https://github.com/jandylin/Latent-Kronecker-GPs (commit fb78f31c)",
        "Apache-2.0",
        "42deb19bcfe36f1dc2d8c64dc4eb1eb74074ca73ad41c0fdd01464726cea8b55",
    ),
    "era5_uk_t2m": Known(
        _GRID,
        (1617, 744),
        "air temperature in K by place and hour, March 2019",
        "ERA5 over the United Kingdom (Hersbach et al. 2020)",
        "https://github.com/pydata/xarray-data (commit 58de68cb)",
        "Copernicus; contains modified Copernicus Climate Change Service information",
        "fd1be549cca29ee4b59484203decb5f4c58798323d4816b572d7d0f031711696",
    ),
    "noaa_stations_1990_1993": Known(
        _GRID,
        (137, 1461),
        "daily maximum temperature in °F by station and day",
        "NOAA stations in the central USA, 1990 to 1993",
        _STATISTICS_WITH_R,
        "data public domain, repository GPL",
        "f7e1238d9f6d85dd0c10e380d8530f8f5bd366682802b6d5b9bd158683232f70",
    ),
    "colorado_monthly_met": Known(
        _GRID,
        (376, 1236),
        "monthly maximum temperature in °C by station and month, 62 % missing",
        "Colorado Monthly Meteorological Data 1895 to 1997 (NCAR)",
        "Debian package r-cran-fields 14.1: COmonthlyMet",
        "package GPL-2 or later",
        "8f580341686de376587be3a772ed0105c4b0075a394ee847ddf0b16addcbb855",
    ),
    "pacific_sst": Known(
        _GRID,
        (2261, 399),
        "anomaly of the sea-surface temperature in °C by place and month",
        "Pacific, 1970 to 2003 (NOAA Climate Prediction Center)",
        _STATISTICS_WITH_R,
        "data public domain, repository GPL",
        "bdd911f0becb3ea2017ce36a953a2286b14a2db14ae503f14cfb7c551e9a9e60",
    ),
    "etopo5_global": Known(
        _IMAGE,
        (2161, 4320),
        "elevation in m by latitude and longitude",
        "ETOPO5 (NOAA NGDC 1988)",
        "Debian package ferret-datasets 7.6.0",
        "public domain",
        "5dbb67b120b19d1f9903da28074849d5cb8b0b37b6c80c15aba27620a9116088",
    ),
    "qm9": Known(
        _MOLECULES,
        (130_831, 1024),
        "nine properties of small molecules, atomic units",
        "QM9 (Ramakrishnan, Dral, Rupp & von Lilienfeld 2014)",
        "PyPI package qm9pack 1.0.3",
        "CC0, package MIT",
        "e1718bc326ba71f0ef2b933283edb0588e967c51287a816ebfe79d7a4737c1a5",
    ),
    "enamine50k_docking": Known(
        _MOLECULES,
        (49_699, 1024),
        "docking score with thymidylate kinase in kcal/mol",
        "Enamine 50k (Graff, Shakhnovich & Coley 2021)",
        "https://github.com/coleygroup/molpal (commit a4032339)",
        "MIT",
        "b62e3d33ece98ac92df7d77523796850d3b84872089d9106e704fb06a1dc7950",
    ),
    "dockstring_zinc_sample": Known(
        _MOLECULES,
        (43_485, 1024),
        "docking scores with six proteins, NaN where not docked",
        "random ZINC molecules (García-Ortegón et al. 2022)",
        "https://github.com/dockstring/experiments-from-paper (commit b1620a7f)",
        "MIT",
        "ac041a2766a27824ec3b7550dfddb3d1ab331d73c95b6caf13fa9873dd65db6a",
    ),
}
