"""trackio. Project and place are its own: TRACKIO_PROJECT, TRACKIO_DIR."""

import contextlib
import io
import os
from collections.abc import Mapping
from typing import Any

from headrace.launch.sinks.told import Kept, Told


class TrackioSink:
    """Sends to one run there, the same one when a run is continued."""

    def __init__(self, told: Told) -> None:
        import trackio

        project = os.environ.get("TRACKIO_PROJECT", "headrace")
        with contextlib.redirect_stdout(io.StringIO()):  # it greets
            self._run: Any = trackio.init(
                project=project,
                name=told.id or told.folder.name,
                config=dict(told.settings),
                resume="allow" if told.id else "never",
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )
        self.id, self.where = self._run.name, f"trackio show --project {project}"

    def row(self, figures: Mapping[str, float], *, step: int, at: float) -> None:
        self._run.log({**figures, "at": at}, step=step)

    def end(self, kept: Kept) -> None:
        import trackio

        last: dict[str, object] = {f"summary/{name}": v for name, v in kept.summary.items()}
        last |= {path.stem: trackio.Image(str(path)) for path in kept.pictures}
        self._run.log(last | {path.stem: trackio.Video(str(path)) for path in kept.videos})

    def close(self) -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            self._run.finish()


open_sink = TrackioSink
