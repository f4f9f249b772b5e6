"""Tables for a spreadsheet: RUN_DIR/figures.csv, a line for each row that the run wrote."""

import csv
import io
import math
from array import array
from collections.abc import Mapping

from headrace.broker import durable
from headrace.launch.sinks.told import Kept, Told


class CsvSink:
    """Collects columns and writes them at the end, since a later row may bring a new column. It
    keeps no id, so it is given every row again each time."""

    id = ""

    def __init__(self, told: Told) -> None:
        self._path = told.folder / "figures.csv"
        self.where = str(self._path)
        self.columns: dict[str, array[float]] = {}  # of one length; NaN = the row has none
        self._rows = 0

    def row(self, figures: Mapping[str, float], *, step: int, at: float) -> None:
        for name, value in {"steps": step, "at": at, **figures}.items():
            column = self.columns.setdefault(name, array("d", ()))
            column.extend([math.nan] * (self._rows - len(column)))
            column.append(value)
        self._rows += 1

    def end(self, kept: Kept) -> None:
        """Does nothing: the files lie beside it."""

    def close(self) -> None:
        for column in self.columns.values():
            column.extend([math.nan] * (self._rows - len(column)))
        durable.write(self._path, self._content())

    def _content(self) -> bytes:
        text = io.StringIO()
        table = csv.writer(text)
        table.writerow(self.columns)
        for row in zip(*self.columns.values(), strict=True):
            table.writerow("" if math.isnan(value) else repr(value) for value in row)
        return text.getvalue().encode()


open_sink = CsvSink
