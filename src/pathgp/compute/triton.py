"""Where Triton kernels can run."""

from __future__ import annotations

import importlib.util

import torch

# The oldest version that the kernels were tried with. Releases of torch before 2.10 bring older ones.
OLDEST = (3, 6)


def missing(device: torch.device) -> str:
    """Why kernels written in Triton cannot run on a device; empty if they can."""
    if importlib.util.find_spec("triton") is None:
        return "fused products need Triton: pip install 'pathgp[triton]'"
    if _is_old(found := _version()):
        oldest = ".".join(map(str, OLDEST))
        return f"fused products need Triton {oldest}, which comes with torch 2.10; this is Triton {found}"
    if device.type != "cuda" and not interpreting():
        return f"fused products run on CUDA devices, X is on {device}"
    return ""


def preferred(device: torch.device) -> bool:
    """Whether kernels written in Triton are the first choice on a device."""
    return device.type == "cuda"


def interpreting() -> bool:
    """Whether Triton interprets its kernels, on any device, as tests do."""
    import triton

    return bool(triton.knobs.runtime.interpret)


def _version() -> str:
    import triton

    return str(triton.__version__)


def _is_old(version: str) -> bool:
    return tuple(int(part) for part in version.split(".")[:2]) < OLDEST
