"""A posterior as one file: data, model, solutions, draws of the prior, settings and report; see `pathgp.compute.files`.

A file describes objects by the names of their classes and the arguments of their constructors, which all classes here
keep as attributes. Only the classes of this package are described, and only they are built again: the names are looked
up in a table, nothing is imported and no code is in the file.
"""

from __future__ import annotations

import inspect
import json
import math
import os
from collections.abc import Callable
from dataclasses import replace
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor, nn

from pathgp import kernels, solvers
from pathgp._version import __version__
from pathgp.compute import files
from pathgp.compute.settings import Compute
from pathgp.data.grid import GridObservations
from pathgp.data.standardise import Standardisation
from pathgp.kernels.parameters import LogNormal, Positive
from pathgp.means import Constant
from pathgp.models import GP, LatentKroneckerGP
from pathgp.models.base import Model
from pathgp.posterior.base import BasePosterior
from pathgp.posterior.conditioning import Settings, System
from pathgp.posterior.grid import GridPosterior
from pathgp.posterior.report import ConditionReport
from pathgp.posterior.table import Posterior
from pathgp.solvers import Status

_PARTS = [GP, LatentKroneckerGP, Constant, LogNormal, GridObservations, Standardisation, System, Settings, Compute]
_NAMES = [*vars(kernels).values(), *vars(solvers).values(), *_PARTS, ConditionReport]
KNOWN: dict[str, Callable[..., Any]] = {cls.__name__: cls for cls in _NAMES if isinstance(cls, type)}


def save(
    posterior: BasePosterior,
    path: str | os.PathLike[str],
    data: bool = True,
    about: dict[str, Any] | None = None,
) -> None:
    """Write a posterior to a file, in place of what was there before; of several ranks the first one writes.

    ``about``: plain values to go with it, like the names of columns: a dict of texts, finite numbers, booleans,
    None, and lists and dicts of them. The loaded posterior has it as ``about``; None keeps what a loaded one came with.

    With ``data=False`` the right-hand sides (y, the prior draws at X and the draws of the noise) stay out. X does not,
    and neither do the weights, from which y can be had again to within ``tol``: the file is small, not anonymous.
    """
    settings, model = posterior.settings, posterior.model
    about = posterior.about if about is None else about
    if about is not None and not isinstance(about, dict):
        raise TypeError(f"about must be a dict of names with plain values, got {type(about).__name__}")
    _check_plain(about, "about")
    system = posterior.system if data else _without_targets(posterior.system)
    if not settings.compute.is_main_process:
        return
    content = {
        "pathgp": __version__,
        "device": str(system.X.device),
        "model": described(model),
        "state": dict(model.state_dict()),
        "limits": {
            name: [described(module.bounds), described(module.prior)]
            for name, module in model.named_modules()
            if isinstance(module, Positive)
        },
        "learned": [name for name, parameter in model.named_parameters() if parameter.requires_grad],
        "system": described(system),
        "prior": None if posterior.prior is None else posterior.prior.state(),
        "weights": posterior.weights,
        "settings": described(replace(settings, compute=replace(settings.compute, group=None))),
        "report": described(posterior.report),
        # As one text: names in it may be those of the format.
        "about": json.dumps(about),
    }
    if isinstance(posterior, GridPosterior):
        grid = posterior.data
        content["data"] = described(grid if data else replace(grid, y=torch.full_like(grid.y, torch.nan)))
    else:
        content["scaling"] = described(posterior.scaling)
    files.write(path, content)


def load(path: str | os.PathLike[str], device: str | torch.device | None = None) -> Any:
    """The posterior that ``post.save(path)`` wrote: a `Posterior` or a `GridPosterior`, its ``model`` included.

    Predictions and updates are those of the saved posterior, to the last bit on the same kind of device. Nothing in
    the file is run. Of a posterior that several ranks or devices shared, one process and one device take over.

    Args:
        path: the file.
        device: where the posterior is to live; None is where it was, or the CPU if there is no such device here.

    Raises:
        ValueError: for a file that is damaged, from a newer version, or no posterior of pathgp.
    """
    content = files.read(path)
    home = _found(content) if device is None else torch.empty(0, device=device).device
    try:
        posterior = _restored(content, home)
        posterior.about = json.loads(content.get("about", "null"))
        return posterior
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        raise ValueError(f"{os.fspath(path)} does not describe a posterior of pathgp: {error!r}") from error


def described(value: Any, seen: dict[int, int] | None = None) -> Any:
    """An object in dicts, lists, plain types and tensors, for `built`; TypeError for what is not of this package.

    ``seen``: the numbers of the objects described so far. One that comes again, such as a kernel k in k + k * k, which
    has its hyperparameters only once, is referred to by its number.
    """
    seen = {} if seen is None else seen
    if value is None or isinstance(value, bool | str | Tensor):
        return value
    if isinstance(value, Real):
        return int(value) if isinstance(value, Integral) else float(value)
    if isinstance(value, list | tuple | nn.ModuleList):
        return [described(part, seen) for part in value]
    if isinstance(value, Status):
        return {"$status": value.name}
    if id(value) in seen:
        return {"$again": seen[id(value)]}
    kind: Callable[..., Any] = type(value)
    if KNOWN.get(type(value).__name__) is not kind:
        raise TypeError(f"{_name(value)} cannot be saved, for a file holds no code: {_advice(value)}")
    arguments = {name: described(getattr(value, name), seen) for name in inspect.signature(kind).parameters}
    seen[id(value)] = len(seen)
    return {"$class": type(value).__name__, **arguments}


def built(tree: Any, device: torch.device, seen: list[Any] | None = None) -> Any:
    """The object that `described` describes, its tensors on a device."""
    seen = [] if seen is None else seen
    if isinstance(tree, Tensor):
        return tree.to(device)
    if isinstance(tree, list):
        return [built(part, device, seen) for part in tree]
    if not isinstance(tree, dict):
        return tree
    if "$status" in tree:
        return Status[tree["$status"]]
    if "$again" in tree:
        return seen[tree["$again"]]
    arguments = {name: built(part, device, seen) for name, part in tree.items() if name != "$class"}
    kind = KNOWN[tree["$class"]]
    # Sum and Product take their kernels one by one.
    rest = [p.name for p in inspect.signature(kind).parameters.values() if p.kind is p.VAR_POSITIONAL]
    several = [part for name in rest for part in arguments.pop(name)]
    seen.append(kind(*several, **arguments))
    return seen[-1]


def _restored(content: dict[str, Any], device: torch.device) -> Posterior | GridPosterior:
    model = built(content["model"], torch.device("cpu"))
    # Constructors take values; what is stored behind the softplus is the same only to the last digit.
    model.load_state_dict(content["state"])
    for name, (bounds, prior) in content["limits"].items():
        positive = model.get_submodule(name)
        positive.bounds = None if bounds is None else tuple(bounds)
        positive.prior = built(prior, device)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in content["learned"])
    model.to(device)
    system, weights = built(content["system"], device), content["weights"].to(device)
    settings, report = built(_with_compute(content["settings"]), device), built(content["report"], torch.device("cpu"))
    prior = None if content["prior"] is None else model.restore_prior(content["prior"])
    _check_kinds([(model, Model), (system, System), (settings, Settings), (report, ConditionReport)])
    if weights.ndim != 2 or len(weights) != len(system.X):
        raise ValueError(f"there are {len(system.X)} rows of inputs and weights of shape {tuple(weights.shape)}")
    if torch.device(content["device"]).type != device.type:
        # A backend that was asked for may not exist here.
        settings = settings.with_backend("auto")
    if isinstance(model, LatentKroneckerGP):
        data = built(content["data"], device)
        _check_kinds([(data, GridObservations)])
        return GridPosterior(model, data, system, prior, weights, settings, report)
    scaling = built(content["scaling"], device)
    _check_kinds([(scaling, Standardisation)])
    return Posterior(model, scaling, system, prior, weights, settings, report)


def _with_compute(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings as they are saved now; files of earlier versions have the options of `Compute` among them."""
    if "compute" in settings:
        return settings
    options = {name: settings[name] for name in ("backend", "memory", "precision") if name in settings}
    kept = {name: settings[name] for name in ("$class", "solver", "tol", "max_epochs")}
    return {**kept, "compute": {"$class": "Compute", **options}}


def _check_plain(value: Any, place: str) -> None:
    """TypeError or ValueError, naming the place, for what does not come back from JSON as it was."""
    if isinstance(value, dict):
        for name, part in value.items():
            if not isinstance(name, str):
                raise TypeError(f"{place} has the key {name!r}: keys must be texts")
            _check_plain(part, f"{place}[{name!r}]")
    elif isinstance(value, list):
        for i, part in enumerate(value):
            _check_plain(part, f"{place}[{i}]")
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{place} is {value}: numbers must be finite")
    elif value is not None and type(value) not in (bool, int, float, str):
        raise TypeError(f"{place} is of {type(value).__name__}: use texts, numbers, booleans, None, lists and dicts")


def _check_kinds(parts: list[tuple[Any, type]]) -> None:
    for part, kind in parts:
        if not isinstance(part, kind):
            raise TypeError(f"{kind.__name__} expected, found {type(part).__name__}")


def _found(content: dict[str, Any]) -> torch.device:
    """The device of the saved posterior, or the CPU."""
    try:
        return torch.empty(0, device=content["device"]).device
    except Exception:
        return torch.device("cpu")


def _without_targets(system: System) -> System:
    return replace(system, targets=system.targets[:, :0], noise_draws=system.noise_draws[:, :0])


def _name(value: Any) -> str:
    return f"the function {value.__qualname__}" if inspect.isfunction(value) else f"an object of {type(value).__name__}"


def _advice(value: Any) -> str:
    if isinstance(value, kernels.Kernel | Model):
        return "with kernels and models of your own save hyperparameters() and the data, and condition anew"
    if isinstance(value, solvers.Solver):
        return "condition with one of pathgp's solvers"
    return "as mean use a number or means.Constant, or take the function off y and add it to the predictions"
