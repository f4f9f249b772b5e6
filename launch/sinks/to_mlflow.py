"""MLflow. Where it keeps runs, and under which experiment: MLFLOW_TRACKING_URI,
MLFLOW_EXPERIMENT_NAME and the rest of its variables. How long it waits for a server that does not
answer is ours unless they say it: by itself it would wait for a quarter of an hour."""

import os
from collections.abc import Mapping

from headrace.launch.sinks.told import Kept, Told

_LONGEST = 500  # characters of a value that every server takes
_PATIENCE = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "20", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2"}


class MlflowSink:
    """Sends to one run there, the same one when a run is continued."""

    def __init__(self, told: Told) -> None:
        for name, value in _PATIENCE.items():
            os.environ.setdefault(name, value)
        from mlflow import MlflowClient

        self._client = MlflowClient()
        self.id = told.id or self._new(told)
        self._client.update_run(self.id, status="RUNNING")
        self.where = f"run {self.id} at {self._client.tracking_uri}"

    def _new(self, told: Told) -> str:
        from mlflow.entities import Param

        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "headrace")
        found = self._client.get_experiment_by_name(name)
        experiment = found.experiment_id if found else self._client.create_experiment(name)
        run_id: str = self._client.create_run(experiment, run_name=told.folder.name).info.run_id
        params = [Param(key, str(value)[:_LONGEST]) for key, value in told.settings.items()]
        for at in range(0, len(params), 100):  # the most that one request takes
            self._client.log_batch(run_id, params=params[at : at + 100])
        return run_id

    def row(self, figures: Mapping[str, float], *, step: int, at: float) -> None:
        from mlflow.entities import Metric

        metrics = [Metric(name, value, int(1000 * at), step) for name, value in figures.items()]
        self._client.log_batch(self.id, metrics=metrics)

    def end(self, kept: Kept) -> None:
        for name, value in kept.summary.items():
            self._client.log_metric(self.id, f"summary/{name}", value)
        for path in (*kept.pictures, *kept.videos):
            self._client.log_artifact(self.id, str(path))
        if kept.best is not None:
            self._client.log_artifacts(self.id, str(kept.best), "best")
        self._client.set_terminated(self.id)

    def close(self) -> None:
        """Does nothing: each call has sent what it was given."""


open_sink = MlflowSink
