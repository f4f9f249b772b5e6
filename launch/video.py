"""What an environment shows, as a GIF or MP4 file that is whole or not there."""

import importlib
import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from launch import config

# pygame draws without a window and without a greeting.
_UNSEEN = {"SDL_VIDEODRIVER": "dummy", "PYGAME_HIDE_SUPPORT_PROMPT": "1"}
_FPS = 30  # of an environment that does not say
_LONGEST_LINE = 200
_PACKAGES = {".gif": ("imageio", "PIL"), ".mp4": ("imageio", "imageio_ffmpeg")}


class VideoError(config.ConfigError):
    """It cannot be made; one line."""


class Video:
    """Frames go to a file beside the wanted one, which takes its name at the end."""

    def __init__(self, path: Path, name: str) -> None:
        if path.suffix not in _PACKAGES:
            raise VideoError(f"--video {path}: its name must end in {' or '.join(_PACKAGES)}")
        try:
            for package in _PACKAGES[path.suffix]:
                importlib.import_module(package)
        except ImportError as error:
            raise VideoError(
                f"--video needs {error.name or 'imageio'}: pip install 'headrace[video]'"
            ) from error
        for name, value in _UNSEEN.items():
            os.environ.setdefault(name, value)
        if not os.environ.get("DISPLAY"):
            os.environ.setdefault("MUJOCO_GL", "egl")
        self.frames = 0
        self._path, self._name = path, name
        self._part = path.with_name(f".{path.stem}.part{path.suffix}")
        self._shape: tuple[int, ...] = ()
        self._writer: Any = None

    def watch(self, env: Any) -> None:
        """Takes what it shows now."""
        try:
            frame = env.render()
        except Exception as error:
            raise VideoError(
                f"{self._name} cannot be rendered: {_line(error)}{_hint(error)}"
            ) from error
        if not _is_picture(frame):
            raise VideoError(
                f"{self._name} renders {_kind(frame)}, not a picture of height x width x 3 bytes;"
                " it needs the render mode rgb_array"
            )
        if self._writer is None:
            self._shape = frame.shape
            self._open(float(env.metadata.get("render_fps") or _FPS))
        if frame.shape != self._shape:
            raise VideoError(f"{self._name} renders pictures of several sizes")
        self._writer.append_data(_even(frame) if self._path.suffix == ".mp4" else frame)
        self.frames += 1

    def __enter__(self) -> "Video":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """Unless it is whole, nothing is left of it."""
        if self._writer is not None:
            self._writer.close()
            if kind is None:
                self._part.replace(self._path)
        self._part.unlink(missing_ok=True)

    def _open(self, fps: float) -> None:
        from imageio import v2 as imageio

        # imageio would resize for old players, with a warning.
        logging.getLogger("imageio_ffmpeg").setLevel(logging.ERROR)
        kinds: dict[str, dict[str, Any]] = {
            ".gif": {"duration": 1000 / fps, "loop": 0},
            ".mp4": {"fps": fps, "macro_block_size": 1},
        }
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._writer = imageio.get_writer(self._part, mode="I", **kinds[self._path.suffix])
        except OSError as error:
            raise VideoError(f"--video {self._path}: {error.strerror or error}") from error


def _is_picture(frame: Any) -> bool:
    return (
        isinstance(frame, np.ndarray)
        and frame.dtype == np.uint8
        and frame.ndim == 3
        and frame.shape[2] == 3
    )


def _even(frame: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """MP4's colours belong to squares of four: an odd last row or column is doubled."""
    height, width, _ = frame.shape
    return np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")


def _kind(frame: Any) -> str:
    if isinstance(frame, np.ndarray):
        return f"{frame.dtype.name}{[*frame.shape]}"
    return "nothing" if frame is None else f"a {type(frame).__name__}"


def _line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return (text[0] if text else type(error).__name__)[:_LONGEST_LINE]


def _hint(error: Exception) -> str:
    if type(error).__module__.split(".")[0] in ("mujoco", "glfw", "OpenGL"):
        return "; MUJOCO_GL says how it draws: egl, osmesa or glfw"
    return ""
