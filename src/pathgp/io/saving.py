"""A posterior in one file: data, model, solutions, draws of the prior, settings and report; see `pathgp.compute.files`.

A file describes objects by the names of their classes and the arguments of their constructors, which all classes here
keep as attributes. Only classes of this package are saved and constructed: names are looked up in a table, nothing is
imported, and a file contains no code.
"""

from __future__ import annotations

import inspect
import json
import math
import os
import re
from collections.abc import Callable
from dataclasses import replace
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor, nn

from pathgp import kernels, solvers
from pathgp._version import __version__
from pathgp.compute import files
from pathgp.compute.counts import CountRows
from pathgp.compute.settings import Compute
from pathgp.data.grid import GridObservations
from pathgp.data.rows import Rows
from pathgp.data.standardise import Standardisation
from pathgp.data.trend import TrendScaling
from pathgp.kernels.parameters import LogNormal, Positive
from pathgp.means import Constant, Trend
from pathgp.models import GP, InducingGP, LatentKroneckerGP
from pathgp.models.base import Model
from pathgp.posterior.base import BasePosterior
from pathgp.posterior.conditioning import Settings
from pathgp.posterior.grid import GridPosterior
from pathgp.posterior.inducing import InducingPosterior
from pathgp.posterior.report import ConditionReport
from pathgp.posterior.system import System
from pathgp.posterior.table import Posterior
from pathgp.solvers import Status
from pathgp.sparse.statistics import Sums

_PARTS = [GP, LatentKroneckerGP, Constant, LogNormal, GridObservations, Standardisation, System, Settings, Compute]
_PARTS += [InducingGP, Rows, Sums, ConditionReport, Trend, TrendScaling]
_NAMES = [*vars(kernels).values(), *vars(solvers).values(), *_PARTS]
KNOWN: dict[str, Callable[..., Any]] = {cls.__name__: cls for cls in _NAMES if isinstance(cls, type)}


def save(
    posterior: BasePosterior, path: str | os.PathLike[str], data: bool = True, about: dict[str, Any] | None = None
) -> None:
    """Write a posterior to a file, replacing an existing one, as `BasePosterior.save` does.

    ``data=False`` leaves out the right-hand sides (y, the prior draws at X and the draws of the noise). X and the
    weights are saved, from which y can be computed to within ``tol``: the file is small, not anonymous. ``about``: None
    keeps the values of a loaded posterior.
    """
    settings, model = posterior.settings, posterior.model
    about = posterior.about if about is None else about
    if about is not None and not isinstance(about, dict):
        raise TypeError(f"about must be a dict of names with plain values, got {type(about).__name__}")
    _check_plain(about, "about")
    system = posterior.system
    if not data:
        system = replace(system, targets=system.targets[:, :0], noise_draws=system.noise_draws[:, :0])
    if not settings.compute.is_main_process:
        return
    content = {
        "pathgp": __version__,
        "device": str(system.X.device),
        "model": encode(model),
        "state": dict(model.state_dict()),
        "limits": {
            name: [encode(module.bounds), encode(module.prior)]
            for name, module in model.named_modules()
            if isinstance(module, Positive)
        },
        "learned": [name for name, parameter in model.named_parameters() if parameter.requires_grad],
        "system": encode(system),
        "prior": None if posterior.prior is None else posterior.prior.state(),
        "weights": posterior.solutions,
        "settings": encode(replace(settings, compute=replace(settings.compute, group=None))),
        "report": encode(posterior.report),
        # As one string: its keys may be those of the format.
        "about": json.dumps(about),
    }
    if isinstance(posterior, GridPosterior):
        grid = posterior.data
        content["data"] = encode(grid if data else replace(grid, y=torch.full_like(grid.y, torch.nan)))
        content["paths_seed"] = posterior.paths_seed
    else:
        content["scaling"] = encode(posterior.scaling)
    if isinstance(posterior, InducingPosterior):
        content |= {"factor": posterior.factor, "sums": encode(posterior.sums)}
        content["data"] = encode(posterior.data if data else None)
    files.write(path, content)


def load(path: str | os.PathLike[str], device: str | torch.device | None = None) -> Any:
    """Load the posterior that ``post.save(path)`` wrote: a `Posterior`, an `InducingPosterior` or a `GridPosterior`.

    Predictions and updates are those of the saved posterior, to the last bit on the same kind of device. No code in the
    file is executed. A posterior that several ranks or devices shared is loaded into one process, on one device.

    Args:
        path: the file.
        device: device of the posterior; None is the device it was saved from, or the CPU if that does not exist here.

    Raises:
        ValueError: for a file that is damaged, from a newer version, or not a posterior of pathgp.
    """
    content = files.read(path, "pathgp")
    try:
        home = torch.empty(0, device=content["device"] if device is None else device).device
    except Exception:
        if device is not None:
            raise
        home = torch.device("cpu")
    try:
        posterior = _restore(content, home)
        posterior.about = json.loads(content.get("about", "null"))
        return posterior
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        raise ValueError(f"{os.fspath(path)} does not describe a posterior of pathgp: {error!r}") from error


def encode(value: Any, seen: dict[int, int] | None = None) -> Any:
    """Convert an object to dicts, lists, plain types and tensors, for `decode`; TypeError for foreign classes.

    ``seen``: the numbers of the objects encoded so far. A repeated one, such as the kernel k in k + k * k, which has
    its hyperparameters only once, is referred to by its number.
    """
    seen = {} if seen is None else seen
    if isinstance(value, CountRows):
        return {"$counts": [*value.parts, value.shape[1], str(value.dtype).removeprefix("torch.")]}
    if value is None or isinstance(value, bool | str | Tensor):
        return value
    if isinstance(value, Real):
        return int(value) if isinstance(value, Integral) else float(value)
    if isinstance(value, list | tuple | nn.ModuleList):
        return [encode(part, seen) for part in value]
    if isinstance(value, Status):
        return {"$status": value.name}
    if id(value) in seen:
        return {"$again": seen[id(value)]}
    kind: Callable[..., Any] = type(value)
    if KNOWN.get(type(value).__name__) is not kind:
        raise TypeError(f"{_name(value)} cannot be saved, because a file contains no code: {_advice(value)}")
    arguments = {name: encode(getattr(value, name), seen) for name in inspect.signature(kind).parameters}
    seen[id(value)] = len(seen)
    return {"$class": type(value).__name__, **arguments}


def decode(tree: Any, device: torch.device, seen: list[Any] | None = None) -> Any:
    """Construct the object that `encode` converted, with its tensors on a device."""
    seen = [] if seen is None else seen
    if isinstance(tree, Tensor):
        return tree.to(device)
    if isinstance(tree, list):
        return [decode(part, device, seen) for part in tree]
    if not isinstance(tree, dict):
        return tree
    if "$counts" in tree:
        ends, tokens, width, dtype = decode(tree["$counts"], device)
        return CountRows(ends, tokens, width, getattr(torch, dtype))
    if "$status" in tree:
        return Status[tree["$status"]]
    if "$again" in tree:
        return seen[tree["$again"]]
    arguments = {name: decode(part, device, seen) for name, part in tree.items() if name != "$class"}
    _update_fields(tree["$class"], arguments)
    kind = KNOWN[tree["$class"]]
    # Sum and Product take their kernels one by one.
    rest = [p.name for p in inspect.signature(kind).parameters.values() if p.kind is p.VAR_POSITIONAL]
    several = [part for name in rest for part in arguments.pop(name)]
    seen.append(kind(*several, **arguments))
    return seen[-1]


def _update_fields(kind: str, arguments: dict[str, Any]) -> None:
    """Translate fields of files from earlier versions."""
    if kind == "GridInverse":
        arguments.pop("rank", None)
    elif kind == "GridObservations" and "known" in arguments:
        arguments["noise_std"] = arguments.pop("known")
    elif kind == "Settings" and "compute" not in arguments:
        names = arguments.keys() & {"backend", "memory", "group", "precision"}
        arguments["compute"] = Compute(**{name: arguments.pop(name) for name in names})
    elif kind == "Solution" and "method" not in arguments:
        arguments["method"] = arguments["solver"].split("(")[0]
        # A sentence such as "low precision, off by 1.2e-03, then high: the rounds did not contract", or nothing.
        words = re.match(r"(\w+) precision(?:, off by ([^\s,:]+))?(?:[,:] (.*))?$", arguments.pop("products", ""))
        if words:
            arguments["precision"], error, note = words.groups(default="")
            arguments["product_error"], arguments["precision_note"] = float(error) if error else None, note


def _restore(content: dict[str, Any], device: torch.device) -> Posterior | GridPosterior:
    model = decode(content["model"], torch.device("cpu"))
    # Constructors take values, which determine the parameters behind the softplus only up to rounding.
    model.load_state_dict(content["state"])
    for name, (bounds, prior) in content["limits"].items():
        positive = model.get_submodule(name)
        positive.bounds = None if bounds is None else tuple(bounds)
        positive.prior = decode(prior, device)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in content["learned"])
    model.to(device)
    system, weights = decode(content["system"], device), content["weights"].to(device)
    settings = decode(content["settings"], device)
    report = decode(content["report"], torch.device("cpu"))
    prior = None if content["prior"] is None else model.restore_prior(content["prior"])
    _require_kinds((model, Model), (system, System), (settings, Settings), (report, ConditionReport))
    if weights.ndim != 2 or len(weights) != len(system.X):
        raise ValueError(f"there are {len(system.X)} rows of inputs and weights of shape {tuple(weights.shape)}")
    if torch.device(content["device"]).type != device.type:
        # The requested backend may not exist here.
        settings = replace(settings, compute=replace(settings.compute, backend="auto"))
    if isinstance(model, LatentKroneckerGP):
        data = decode(content["data"], device)
        _require_kinds((data, GridObservations))
        seed = content.get("paths_seed")
        return GridPosterior(model, data.scaling, system, prior, weights, settings, report, data, paths_seed=seed)
    scaling = decode(content["scaling"], device)
    _require_kinds((scaling, Standardisation))
    if isinstance(model, InducingGP):
        factor = None if content["factor"] is None else content["factor"].to(device)
        sums, rows = decode(content["sums"], device), decode(content["data"], device)
        return InducingPosterior(model, scaling, system, prior, weights, settings, report, factor, sums, rows)
    weights, trend = system.split(weights)
    return Posterior(model, scaling, system, prior, weights, settings, report, least_squares=trend)


def _check_plain(value: Any, place: str) -> None:
    """Raise TypeError or ValueError, naming the place, for values that JSON would change."""
    if isinstance(value, dict):
        for name, part in value.items():
            if not isinstance(name, str):
                raise TypeError(f"{place} has the key {name!r}: keys must be strings")
            _check_plain(part, f"{place}[{name!r}]")
    elif isinstance(value, list):
        for i, part in enumerate(value):
            _check_plain(part, f"{place}[{i}]")
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{place} is {value}: numbers must be finite")
    elif value is not None and type(value) not in (bool, int, float, str):
        raise TypeError(f"{place} is of {type(value).__name__}: use strings, numbers, booleans, None, lists and dicts")


def _require_kinds(*parts: tuple[Any, type]) -> None:
    for part, kind in parts:
        if not isinstance(part, kind):
            raise TypeError(f"expected {kind.__name__}, got {type(part).__name__}")


def _name(value: Any) -> str:
    return f"the function {value.__qualname__}" if inspect.isfunction(value) else f"an object of {type(value).__name__}"


def _advice(value: Any) -> str:
    if isinstance(value, kernels.Kernel | Model):
        return "for your own kernels and models save hyperparameters() and the data, and condition again"
    if isinstance(value, solvers.Solver):
        return "condition with one of pathgp's solvers"
    return "as mean use a number or means.Constant, or subtract the function from y and add it to the predictions"
