"""A video of an environment as a GIF or MP4 file that is either whole or absent."""

import contextlib
import importlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from headrace.broker import durable
from headrace.broker.errors import install_extra
from headrace.launch.config import run_file
from headrace.launch.process import runtime

# Makes pygame draw without a window and without a greeting.
_HEADLESS = {"SDL_VIDEODRIVER": "dummy", "PYGAME_HIDE_SUPPORT_PROMPT": "1"}
_FPS = 30  # of an environment that does not declare one
_LONGEST_LINE = 200
# The rectangle of a GIF that is rewritten when two pictures in a row are equal.
_CORNER = (0, 0, 1, 1)
_PACKAGES = {".gif": ("PIL",), ".mp4": ("imageio", "imageio_ffmpeg")}


class VideoError(run_file.ConfigError):
    """Signals that the video cannot be made; its text is one line."""


class Video:
    """Writes frames to a temporary file beside the wanted one and renames it at the end."""

    def __init__(self, path: Path, name: str) -> None:
        self._kind = path.suffix.lower()
        if self._kind not in _PACKAGES:
            raise VideoError(f"--video {path}: its name must end in {' or '.join(_PACKAGES)}")
        try:
            for package in _PACKAGES[self._kind]:
                importlib.import_module(package)
        except ImportError as error:
            raise VideoError(
                f"--video needs {error.name or package}: {install_extra('video')}"
            ) from error
        for key, value in _HEADLESS.items():
            os.environ.setdefault(key, value)
        if not os.environ.get("DISPLAY"):
            os.environ.setdefault("MUJOCO_GL", "egl")
        self.frames = 0
        self._path, self._name = path, name
        self._part = path.with_name(f".{path.stem}.part{self._kind}")
        self._shape: tuple[int, ...] = ()
        self._writer: Any = None

    def add_frame(self, env: Any) -> None:
        """Adds the environment's present picture to the video."""
        frame = self._render(env)
        if not _is_picture(frame):
            raise VideoError(
                f"{self._name} renders {_kind_of(frame)}, not a picture of height x width x 3"
                " bytes; it needs the render mode rgb_array"
            )
        if self._writer is None:
            self._shape = frame.shape
            with self._writing():
                self._writer = self._open_writer(float(env.metadata.get("render_fps") or _FPS))
        if frame.shape != self._shape:
            raise VideoError(f"{self._name} renders pictures of several sizes")
        with self._writing():
            self._writer.append_data(_pad_to_even(frame) if self._kind == ".mp4" else frame)
        self.frames += 1

    def __enter__(self) -> "Video":
        """Checks that the place is writable before anything is played."""
        with self._writing():
            runtime.make_room(self._path)
            runtime.discard(self._part)
            self._part.open("xb").close()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """Finishes the video, or deletes it after an error."""
        try:
            if self._writer is None:
                return
            if kind is None:
                with self._writing():
                    self._finish()
            else:
                with contextlib.suppress(Exception):  # the first error is the one to report
                    self._writer.close()
        finally:
            runtime.discard(self._part)

    def _render(self, env: Any) -> Any:
        try:
            return env.render()
        except NotImplementedError as error:
            raise VideoError(
                f"{self._name} has no render() that gives rgb_array pictures: write one, or play"
                " without --video"
            ) from error
        except Exception as error:
            raise VideoError(
                f"{self._name} cannot be rendered: {_first_line(error)}{_hint(error)}"
            ) from error

    def _open_writer(self, fps: float) -> Any:
        if self._kind == ".gif":
            return Gif(self._part.open("wb"), fps)
        from imageio import v2 as imageio

        # imageio would warn of sizes that only old players reject, and resize without the 1 below.
        logging.getLogger("imageio_ffmpeg").setLevel(logging.ERROR)
        return imageio.get_writer(self._part, mode="I", fps=fps, macro_block_size=1)

    def _finish(self) -> None:
        self._writer.close()
        if self._kind == ".mp4":
            # ffmpeg is a separate process: only its output file shows whether it succeeded.
            importlib.import_module("imageio_ffmpeg").count_frames_and_secs(str(self._part))
        durable.commit(self._part, self._path)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Turns every error of the disk, the codec or its process into a VideoError."""
        try:
            yield
        except VideoError:
            raise
        except Exception as error:
            why = getattr(error, "strerror", None)
            if why is None:
                ended = self._writer is not None and self._kind == ".mp4"
                why = "ffmpeg ended early; is the disk full?" if ended else _first_line(error)
            raise VideoError(f"--video {self._path} cannot be written: {why}") from error


class Gif:
    """Writes a GIF picture by picture, so that a long video needs no memory.

    Every picture has its own palette and the same duration; the video repeats for ever.
    """

    def __init__(self, file: IO[bytes], fps: float) -> None:
        self._file = file
        self._lasts = {"duration": 1000 / fps}
        self._before: Any = None  # the picture written last

    def append_data(self, frame: NDArray[np.uint8]) -> None:
        """Writes the next picture: only the rectangle that changed since the one before."""
        from PIL import Image, ImageChops
        from PIL.GifImagePlugin import getdata, getheader

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


def _is_picture(frame: Any) -> bool:
    return (
        isinstance(frame, np.ndarray)
        and frame.dtype == np.uint8
        and frame.ndim == 3
        and frame.shape[2] == 3
    )


def _pad_to_even(frame: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Pads to even height and width by doubling the last row or column: MP4 shares colours by 2 x
    2."""
    height, width, _ = frame.shape
    return np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")


def _kind_of(frame: Any) -> str:
    if isinstance(frame, np.ndarray):
        return f"{frame.dtype.name}{[*frame.shape]}"
    return "nothing" if frame is None else f"a {type(frame).__name__}"


def _first_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return (text[0] if text else type(error).__name__)[:_LONGEST_LINE]


def _hint(error: Exception) -> str:
    if type(error).__module__.split(".")[0] in ("mujoco", "glfw", "OpenGL"):
        return "; MUJOCO_GL says how it draws: egl, osmesa or glfw"
    return ""
