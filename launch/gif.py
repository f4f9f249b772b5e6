"""A GIF that is written as its pictures come, so that a long film needs no memory."""

from typing import IO

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageChops
from PIL.GifImagePlugin import getdata, getheader

# What changed since the picture before; of two that are equal, a corner.
_CORNER = (0, 0, 1, 1)


class Gif:
    """Every picture has its own colours and lasts as long; it begins again for ever."""

    def __init__(self, file: IO[bytes], fps: float) -> None:
        self._file = file
        self._lasts = {"duration": 1000 / fps}
        self._before: Image.Image | None = None

    def append_data(self, frame: NDArray[np.uint8]) -> None:
        """The next picture."""
        image = Image.fromarray(frame)
        box = (0, 0, *image.size)
        if self._before is None:
            header, _ = getheader(image.quantize(), info={"loop": 0, **self._lasts})
            self._file.write(b"".join(header))
        else:
            box = ImageChops.difference(image, self._before).getbbox() or _CORNER
        blocks = getdata(
            image.crop(box).quantize(), box[:2], include_color_table=True, **self._lasts
        )
        self._file.write(b"".join(blocks))
        self._before = image

    def close(self) -> None:
        with self._file:
            self._file.write(b";")
