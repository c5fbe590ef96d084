"""Where Triton kernels can run."""

from __future__ import annotations

import importlib.util

import torch


def missing(device: torch.device) -> str:
    """Why kernels written in Triton cannot run on a device; empty if they can."""
    if importlib.util.find_spec("triton") is None:
        return "fused products need Triton: pip install 'pathgp[triton]'"
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
