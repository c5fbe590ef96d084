"""Before any test is imported: failed assertions of helpers show their values too, and Triton has its interpreter.

The interpreter runs the fused kernels where there is no GPU; Triton wants to know before it is imported.
"""

from __future__ import annotations

import os

import pytest
import torch

pytest.register_assert_rewrite("cli_cases", "fused_cases", "saving_cases")

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
