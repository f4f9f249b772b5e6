"""Work of the device that is launched as one graph after its first few times."""

import logging
from collections.abc import Callable

import torch

log = logging.getLogger(__name__)

# Times that it is launched piece by piece: libraries choose their kernels and take their memory.
_WARM = 3


class Graph:
    """Launches a function whose work is the same each time, on tensors that stay where they are.

    Where it cannot be captured, that is said once, and it goes on piece by piece.
    """

    def __init__(
        self,
        run: Callable[[], None],
        *,
        capture: bool,
        ready: Callable[[], bool] = lambda: True,
        name: str = "the step",
    ) -> None:
        self._run, self._name = run, name
        self._capture = capture  # still wanted
        self._ready = ready  # tells whether all that the work needs is in its place
        self._launched = 0
        self._graph: torch.cuda.CUDAGraph | None = None

    @property
    def captured(self) -> bool:
        return self._graph is not None

    def __call__(self) -> None:
        if self._graph is None and self._capture and self._launched >= _WARM and self._ready():
            self._graph = self._captured()
        if self._graph is None:
            self._run()
        else:
            self._graph.replay()
        self._launched += 1

    def _captured(self) -> torch.cuda.CUDAGraph | None:
        """Returns the graph; None = there can be none. Nothing runs meanwhile."""
        graph = torch.cuda.CUDAGraph()
        try:
            # Other threads of this process go on using the device: they copy, and ask for events.
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                self._run()
        except RuntimeError as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            torch.cuda.synchronize()
            self._capture = False
            first = str(error).splitlines()[0]
            words = "%s cannot be one graph, it is launched piece by piece: %s"
            log.warning(words, self._name, first)
            return None
        return graph
