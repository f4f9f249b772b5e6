"""TensorBoard: event files in RUN_DIR/tensorboard."""

from collections.abc import Mapping

from headrace.launch.sinks.told import Kept, Told


class TensorBoardSink:
    """Writes event files."""

    def __init__(self, told: Told) -> None:
        from torch.utils.tensorboard import SummaryWriter

        folder = told.folder / "tensorboard"
        self.id, self.where = folder.name, f"tensorboard --logdir {folder}"
        self._writer = SummaryWriter(str(folder))
        if not told.id:
            rows = "".join(f"\n| {name} | {value} |" for name, value in told.settings.items())
            self._writer.add_text("settings", f"| key | value |\n|---|---|{rows}")

    def row(self, figures: Mapping[str, float], *, step: int, at: float) -> None:
        for name, value in figures.items():
            self._writer.add_scalar(name, value, step, walltime=at)

    def end(self, kept: Kept) -> None:
        from matplotlib import image

        for name, value in kept.summary.items():
            self._writer.add_scalar(f"summary/{name}", value)
        for path in kept.pictures:
            self._writer.add_image(path.stem, image.imread(path), dataformats="HWC")

    def close(self) -> None:
        self._writer.close()


open_sink = TensorBoardSink
