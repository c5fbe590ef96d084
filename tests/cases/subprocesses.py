"""Programs of several processes, started by tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def python(*command: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    options: dict[str, Any] = {"cwd": cwd, "capture_output": True, "text": True, "timeout": 120}
    result = subprocess.run([sys.executable, *map(str, command)], env={**os.environ, "OMP_NUM_THREADS": "1"}, **options)
    assert result.returncode == 0, result.stderr
    return result


def torchrun(size: int) -> list[str]:
    return ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={size}"]
