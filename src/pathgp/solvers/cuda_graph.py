"""CUDA graphs of solver steps: on a GPU, short steps are bound by the time of launching their kernels."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from pathgp.operators import Operator

Step = Callable[[Tensor], None]
# Cached memory is released before a capture if a smaller part of the memory of the device is free.
_FREE_PART = 0.25


def capture_step(H: Operator, step: Step) -> Step:
    """The step itself, or on a GPU, if products with H can be captured, a `CapturedStep`.

    ``step`` must work in place, on tensors that live as long as itself, and must not synchronise with the device:
    numbers that change between calls must be tensors. Its Python code runs only during the capture.
    """
    return CapturedStep(step) if H.device.type == "cuda" and H.graph_capturable else step


class CapturedStep:
    """A step and its CUDA graphs, one for every length of its index.

    Memory: the temporary tensors of one step for every length.
    """

    def __init__(self, step: Step) -> None:
        self._step = step
        self._warm: set[int] = set()
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, Tensor]] = {}

    def __call__(self, index: Tensor) -> None:
        size = len(index)
        if size not in self._warm:
            # Kernels cannot be compiled and libraries cannot be loaded during a capture: the first call is direct.
            self._warm.add(size)
            self._step(index)
            return
        if size not in self._graphs:
            self._graphs[size] = self._capture(index)
        graph, captured_index = self._graphs[size]
        captured_index.copy_(index)
        graph.replay()

    def _capture(self, index: Tensor) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        """The graph of a step, not executed yet, and the tensor from which it reads the index."""
        _release_cached_memory(index.device)
        captured_index, graph = torch.empty_like(index), torch.cuda.CUDAGraph()
        # The default stream cannot be captured.
        current, side = torch.cuda.current_stream(index.device), torch.cuda.Stream(index.device)
        side.wait_stream(current)
        with torch.cuda.stream(side), _paused_collector():
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                self._step(captured_index)
            finally:
                graph.capture_end()
        current.wait_stream(side)
        return graph, captured_index


def _release_cached_memory(device: torch.device) -> None:
    """Return unused memory to the device if little is free: during a capture the allocator cannot do so."""
    free, total = torch.cuda.mem_get_info(device)
    if free < _FREE_PART * total:
        # Graphs of earlier solves are in reference cycles, and keep memory of their own.
        gc.collect()
        torch.cuda.empty_cache()


@contextmanager
def _paused_collector() -> Iterator[None]:
    """Python's garbage collector could free an earlier graph, which would invalidate a capture."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
