"""Each sink with its real package, offline: what it was sent can be read back by its own means."""

import contextlib
import csv
import json
import os
import socket
import sqlite3
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib import image
from PIL import Image

from headrace.launch.config import run_file
from headrace.launch.sinks.sink import check_sink
from tests.launch.sinks.a_run import leave_run, training
from tests.needs import missing

RETURNS = [1.5, 3.0, 4.5, 6.0]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """It has ended."""
    folder = leave_run(tmp_path / "pole")
    best = {"best": {"version": 7}}
    (folder / "summary.json").write_text(json.dumps({"wall_s": 1.5, "evaluation": best}))
    image.imsave(folder / "curve.png", np.zeros((4, 6, 3)))
    frames = [Image.new("RGB", (16, 16), colour) for colour in ("red", "blue")]
    frames[0].save(folder / "pole.gif", save_all=True, append_images=frames[1:])
    (folder / "best" / "000000000007").mkdir(parents=True)
    (folder / "best" / "000000000007" / "manifest.json").write_text("{}")
    return folder


def send(folder: Path, name: Any) -> None:
    """Twice: in between the run is continued."""
    try:
        check_sink(name)
    except run_file.ConfigError as error:
        missing(str(error))
    for _ in range(2):
        run("-m", "headrace.launch.cli", "log", str(folder), "--to", name, folder=folder)
        if (folder / "history.jsonl").read_text().count("\n") == 3:
            with (folder / "history.jsonl").open("a") as file:
                file.write(f"{training(4)}\n")


def run(*words: str, folder: Path) -> str:
    """What Python prints in an environment where nothing leaves this machine."""
    own = {
        "WANDB_MODE": "offline",
        "MLFLOW_TRACKING_URI": f"file://{folder}/mlruns",
        "MLFLOW_ALLOW_FILE_STORE": "true",
        "TRACKIO_DIR": f"{folder}/trackio",
        "HOME": str(folder),
    }
    done = subprocess.run(
        [sys.executable, *words],
        env={**os.environ, **own},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", ["csv", "parquet"])
def test_tables(folder: Path, name: str) -> None:
    send(folder, name)
    if name == "csv":
        with (folder / "figures.csv").open() as file:
            rows: list[dict[str, Any]] = list(csv.DictReader(file))
    else:
        from pyarrow import parquet

        rows = parquet.read_table(folder / "figures.parquet").to_pylist()
    held = [float(row["train/mean_return"]) for row in rows if row["train/mean_return"]]
    assert held == RETURNS
    assert [float(row["steps"]) for row in rows] == [100, 200, 300, 400, 200]
    assert float(rows[-1]["evaluation/mean"]) == 42.0


@pytest.mark.slow
def test_tensorboard(folder: Path) -> None:
    send(folder, "tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder / "tensorboard")).Reload()
    points = found.Scalars("train/mean_return")
    assert [(point.step, point.value) for point in points] == list(
        zip([100, 200, 300, 400], RETURNS, strict=True)
    )
    assert found.Scalars("summary/wall_s")[0].value == 1.5
    assert [(shown.width, shown.height) for shown in found.Images("curve")] == [(6, 4)] * 2
    assert (
        b"| learner.lr | 0.5 |"
        in found.Tensors("settings/text_summary")[0].tensor_proto.string_val[0]
    )


@pytest.mark.slow
def test_wandb(folder: Path) -> None:
    send(folder, "wandb")
    from wandb.proto import wandb_internal_pb2

    ids: set[str] = set()
    kept: list[str] = []  # of the best checkpoint
    rows: list[dict[str, Any]] = []
    for path in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        for data in logged(path.read_bytes()):
            record: Any = wandb_internal_pb2.Record.FromString(data)
            if record.WhichOneof("record_type") == "run":
                ids.add(record.run.run_id)
            if record.artifact.type == "model":
                files = record.artifact.manifest.contents
                kept += [one.path for one in files if Path(one.local_path).is_file()]
            if items := record.history.item:
                keys = ["".join(item.nested_key) or item.key for item in items]
                values = [json.loads(item.value_json) for item in items]
                rows.append(dict(zip(keys, values, strict=True)))
    assert len(ids) == 1  # it is continued
    assert [row["train/mean_return"] for row in rows if "train/mean_return" in row] == RETURNS
    assert [row["steps"] for row in rows if "evaluation/mean" in row] == [200]
    held = {path.suffix for path in folder.glob("wandb/offline-run-*/files/media/*/*")}
    assert held == {".png", ".gif"}
    assert set(kept) == {"manifest.json"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "patience"),
    [
        ("wandb", {"WANDB_INIT_TIMEOUT": "2", "WANDB_MODE": "online"}),
        ("mlflow", {"MLFLOW_HTTP_REQUEST_TIMEOUT": "1", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}),
    ],
)
def test_a_server_that_never_answers_is_given_up_in_one_line(
    folder: Path, name: Any, patience: dict[str, str]
) -> None:
    try:
        check_sink(name)
    except run_file.ConfigError as error:
        missing(str(error))
    with socket.create_server(("127.0.0.1", 0)) as hole:  # takes connections, and that is all
        there = f"http://127.0.0.1:{hole.getsockname()[1]}"
        servers = {"WANDB_BASE_URL": there, "MLFLOW_TRACKING_URI": there}
        own = {"WANDB_API_KEY": "0" * 40, "HOME": str(folder), **servers, **patience}
        done = subprocess.run(
            [sys.executable, "-m", "headrace.launch.cli", "log", str(folder), "--to", name],
            env={**os.environ, **own},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
    assert done.returncode == 2
    assert f"headrace: {name} failed: " in done.stderr.splitlines()[-1]


def logged(data: bytes) -> Iterator[bytes]:
    """The records of LevelDB's log format, behind seven bytes of their own: blocks of 32 KiB of
    checksum, length, kind, content; a record may lie in several pieces."""
    at, whole = 7, b""
    while at + 7 <= len(data):
        if 2**15 - at % 2**15 < 7:
            at += 2**15 - at % 2**15
        length, kind = struct.unpack_from("<HB", data, at + 4)
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or its last piece
            yield whole
            whole = b""


@pytest.mark.slow
def test_mlflow(folder: Path) -> None:
    send(folder, "mlflow")
    read = """
import json, mlflow
client = mlflow.MlflowClient()
(run,) = client.search_runs([client.get_experiment_by_name("headrace").experiment_id])
points = client.get_metric_history(run.info.run_id, "train/mean_return")
found = [[p.step, p.value] for p in points]
kept = [client.list_artifacts(run.info.run_id, place) for place in ("", "best")]
files = [one.path for several in kept for one in several]
print(json.dumps([found, run.data.params["learner.lr"], run.info.status, files]))
"""
    points, lr, status, files = json.loads(run("-c", read, folder=folder))
    assert points == [[100 * n, value] for n, value in enumerate(RETURNS, start=1)]
    assert (lr, status) == ("0.5", "FINISHED")
    assert sorted(files) == ["best", "best/manifest.json", "curve.png", "pole.gif"]


@pytest.mark.slow
def test_trackio(folder: Path) -> None:
    send(folder, "trackio")
    with contextlib.closing(sqlite3.connect(folder / "trackio" / "headrace.db")) as store:
        rows = store.execute("select run_name, run_id, step, metrics from metrics").fetchall()
    assert len({(name, run_id) for name, run_id, *_ in rows}) == 1
    held = [(step, json.loads(metrics)) for *_, step, metrics in rows]
    points = [(step, row["train/mean_return"]) for step, row in held if "train/mean_return" in row]
    assert points == list(zip([100, 200, 300, 400], RETURNS, strict=True))
    assert [step for step, row in held if row.get("evaluation/mean") == 42.0] == [200]
    media = {path.suffix for path in (folder / "trackio" / "media").rglob("*.*")}
    assert media == {".png", ".gif"}
