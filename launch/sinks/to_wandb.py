"""Weights & Biases. Account, project and server are its own: WANDB_API_KEY, WANDB_PROJECT,
WANDB_MODE=offline and the rest of its variables."""

import os
from collections.abc import Mapping
from typing import Any

from headrace.launch.sinks.told import Kept, Told


class WandbSink:
    """Sends to one run there, the same one when a run is continued."""

    def __init__(self, told: Told) -> None:
        os.environ.setdefault("WANDB_INIT_TIMEOUT", "60")  # seconds without an answer
        import wandb

        self._run: Any = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "headrace"),
            name=told.folder.name,
            dir=str(told.folder),
            config=dict(told.settings),
            id=told.id or None,
            resume="allow",
            settings=wandb.Settings(silent=True, console="off"),
        )
        # Evaluations come late: a step of their own lets them lie where they belong.
        self._run.define_metric("*", step_metric="steps")
        self.id = self._run.id
        folder = self._run.dir.removesuffix("/files")
        self.where = f"wandb sync {folder}" if self._run.offline else self._run.url

    def row(self, figures: Mapping[str, float], *, step: int, at: float) -> None:
        self._run.log({**figures, "steps": step, "at": at})

    def end(self, kept: Kept) -> None:
        import wandb

        self._run.summary.update(dict(kept.summary))
        pictures = {path.stem: wandb.Image(str(path)) for path in kept.pictures}
        self._run.log(pictures | {path.stem: wandb.Video(str(path)) for path in kept.videos})
        if kept.best is not None:
            artifact = wandb.Artifact(f"{self.id}-best", type="model")
            artifact.add_dir(str(kept.best))
            self._run.log_artifact(artifact)

    def close(self) -> None:
        self._run.finish()


open_sink = WandbSink
