"""Other processes for tests: forks of one process that has imported everything once, and programs of several ranks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any


class Forks:
    """A process that has imported torch and pathgp, 4 seconds of work, and runs programs in forked children.

    The tests of one pytest process share it: the fixture ``forks``.
    """

    def __init__(self) -> None:
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._server = subprocess.Popen([sys.executable, __file__], env=environment, **pipes)
        self._running = 0

    def start(self, program: str, *argument_lists: list[Any]) -> None:
        """Run Python code once for each list of arguments, at the same time, in processes of their own: ``sys.argv``.

        What they print comes by `read_line`; their exit codes, in this order, by `wait`.
        """
        assert not self._running, "an earlier test did not wait for its processes"
        assert self._server.stdin is not None
        self._running = len(argument_lists)
        lists = [list(map(str, arguments)) for arguments in argument_lists]
        self._server.stdin.write(json.dumps([program, lists]) + "\n")
        self._server.stdin.flush()

    def read_line(self) -> str:
        """The next line that a process prints."""
        assert self._server.stdout is not None
        return self._server.stdout.readline().rstrip("\n")

    def wait(self) -> int:
        """Wait for the end of the next process, in the order of their arguments; return its exit code."""
        while line := self.read_line():
            if line.startswith("ended "):
                self._running -= 1
                return int(line.split()[1])
        raise AssertionError("the process that forks the others has ended")

    def run(self, program: str, *argument_lists: list[Any]) -> list[int]:
        """Start processes and wait for all of them; return their exit codes."""
        self.start(program, *argument_lists)
        return [self.wait() for _ in argument_lists]

    def __enter__(self) -> Forks:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.close()
        self._server.wait(timeout=60)
        self._server.stdout.close()


def python(*command: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    options: dict[str, Any] = {"cwd": cwd, "capture_output": True, "text": True, "timeout": 120}
    result = subprocess.run([sys.executable, *map(str, command)], env={**os.environ, "OMP_NUM_THREADS": "1"}, **options)
    assert result.returncode == 0, result.stderr
    return result


def torchrun(size: int) -> list[str]:
    return ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={size}"]


def _fork(program: str, arguments: list[str]) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        sys.argv = ["", *arguments]
        exec(program, {"__name__": "__main__"})
        sys.stdout.flush()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _ended(pid: int) -> int:
    """The exit code of a process that has ended, or that has been stopped after all before it ended."""
    _, status = os.waitpid(pid, os.WUNTRACED)
    if os.WIFSTOPPED(status):
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


def _serve() -> None:
    import torch

    import pathgp  # noqa: F401

    torch.set_num_threads(1)
    # The first step of a torch optimiser imports half of torch: once here instead of in every child.
    torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))]).step()
    for line in sys.stdin:
        program, argument_lists = json.loads(line)
        for pid in [_fork(program, arguments) for arguments in argument_lists]:
            print("ended", _ended(pid), flush=True)


if __name__ == "__main__":
    _serve()
