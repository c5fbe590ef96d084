"""The launches of a step recorded once and played back: on a GPU, launching is what short steps wait for."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from pathgp.operators import Operator

Step = Callable[[Tensor], None]


def replayed(H: Operator, step: Step) -> Step:
    """The same step, recorded as a CUDA graph for every length of its index where the products with H allow it.

    ``step`` must do all its work in place, on tensors that live as long as itself, and must not wait for the device:
    numbers that change between calls are tensors, too. What Python does in it happens only while it is recorded.
    """
    return Replay(step) if H.device.type == "cuda" and H.graph_capturable else step


class Replay:
    """A step and its recordings. Memory: the temporary tensors of one step for every length, kept."""

    def __init__(self, step: Step) -> None:
        self._step = step
        self._compiled: set[int] = set()
        self._recordings: dict[int, tuple[torch.cuda.CUDAGraph, Tensor]] = {}

    def __call__(self, index: Tensor) -> None:
        size = len(index)
        if size not in self._compiled:
            # Kernels that are compiled and libraries that are loaded now cannot be while recording.
            self._compiled.add(size)
            self._step(index)
            return
        if size not in self._recordings:
            self._recordings[size] = self._record(index)
        graph, place = self._recordings[size]
        place.copy_(index)
        graph.replay()

    def _record(self, index: Tensor) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        """The launches of a step, none of which is carried out yet, and where they look for its index."""
        place, graph = torch.empty_like(index), torch.cuda.CUDAGraph()
        # The default stream cannot be recorded.
        here, aside = torch.cuda.current_stream(index.device), torch.cuda.Stream(index.device)
        aside.wait_stream(here)
        with torch.cuda.stream(aside):
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                self._step(place)
            finally:
                graph.capture_end()
        here.wait_stream(aside)
        return graph, place
