"""A table for data frames: RUN_DIR/figures.parquet."""

import io

import numpy as np

from headrace.launch.sinks.to_csv import CsvSink
from headrace.launch.sinks.told import Told


class ParquetSink(CsvSink):
    """Collects columns as the table for a spreadsheet does."""

    def __init__(self, told: Told) -> None:
        super().__init__(told)
        self._path = told.folder / "figures.parquet"
        self.where = str(self._path)

    def _content(self) -> bytes:
        import pyarrow
        from pyarrow import parquet

        columns = {name: np.asarray(column) for name, column in self.columns.items()}
        table = pyarrow.table(
            {name: pyarrow.array(held, mask=np.isnan(held)) for name, held in columns.items()}
        )
        written = io.BytesIO()
        parquet.write_table(table, written)
        return written.getvalue()


open_sink = ParquetSink
