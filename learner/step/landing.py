"""Memory of the host where what a step gives arrives, without either waiting for the other."""

import weakref
from collections.abc import Sequence

import torch
from torch import Tensor


class Landing:
    """Takes the figures and the weights of one step, and holds the settings of it before.

    It may be used again when figures() has returned: then the device is done with all of it.
    """

    def __init__(self, settings: int, nbytes: int, device: torch.device) -> None:
        pinned = device.type == "cuda"
        self._settings = torch.zeros(settings, pin_memory=pinned)
        self._weights: Tensor | None = None  # the weights here, until somebody reads them
        self._spare: list[Tensor] = []  # memory of weights that nobody reads any more
        # Copies on the device: the next step writes new ones while these are on their way.
        self._leaving = torch.empty(nbytes, dtype=torch.uint8, device=device)
        self._numbers: Tensor | None = None  # the figures here
        self._stream: torch.cuda.Stream | None = None
        self._arrived: torch.cuda.Event | None = None
        if pinned:
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def settings(self, values: Sequence[float]) -> Tensor:
        """Returns the settings as a tensor that a copy may read until the step is over."""
        self._settings.copy_(torch.tensor(values))
        return self._settings

    def take(self, figures: Tensor, weights: Tensor) -> None:
        """Begins to fetch them, behind all that was launched until now."""
        pinned = self._stream is not None
        if self._numbers is None:
            self._numbers = torch.empty(figures.shape, dtype=figures.dtype, pin_memory=pinned)
        if self._weights is None:
            self._weights = (
                self._spare.pop()
                if self._spare
                else torch.empty(weights.shape, dtype=weights.dtype, pin_memory=pinned)
            )
        if self._stream is None or self._arrived is None:
            self._numbers.copy_(figures)
            self._weights.copy_(weights)
            return
        self._leaving.copy_(weights)
        leaving = figures.clone()
        self._stream.wait_stream(torch.cuda.current_stream(figures.device))
        with torch.cuda.stream(self._stream):
            self._numbers.copy_(leaving, non_blocking=True)
            self._weights.copy_(self._leaving, non_blocking=True)
            self._arrived.record(self._stream)
        leaving.record_stream(self._stream)

    def figures(self) -> Tensor:
        """Waits until all has arrived; returns the figures."""
        if self._arrived is not None:
            self._arrived.synchronize()
        assert self._numbers is not None
        return self._numbers.clone()

    def weights(self) -> memoryview:
        """Returns the weights, once. Their memory is used again when nobody reads them any more."""
        assert self._weights is not None
        here, self._weights = self._weights, None
        array = here.numpy()
        weakref.finalize(array, self._spare.append, here)
        return array.data
