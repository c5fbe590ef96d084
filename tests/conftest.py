"""Triton's interpreter runs the fused kernels where there is no GPU; it wants to know before Triton is imported."""

from __future__ import annotations

import os

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
