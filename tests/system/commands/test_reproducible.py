"""The same run twice is the same to the last bit, and a recording trains to the same weights."""

import re
from pathlib import Path

import pytest

from headrace.launch.config.run_file import ConfigError
from headrace.launch.results.replay import first_difference, replay
from headrace.learner.batches.recording import RecordError
from headrace.learner.checkpoints import checkpoint
from tests.system.conftest import Place, Process
from tests.system.roles.test_torchrun import torchrun


def final(out: Path) -> checkpoint.Checkpoint:
    found = checkpoint.load_latest(out / "checkpoints")
    assert found is not None
    return found


def test_one_sampler_without_lag_is_the_same_run_again(place: Place) -> None:
    """Dice everywhere: actions, resets, shuffled minibatches; statistics and a memory besides."""
    sets = (
        "actor.count=1",
        "actor.groups=1",
        "pacing.max_lag=0",
        "algorithm.name=ppo",
        "model.core=gru",
        "model.normalise_obs=true",
        "model.previous=true",
    )
    given = ["--quiet", "--no-evaluate", "--stop-steps", "2000"]
    given += [word for setting in sets for word in ("--set", setting)]
    outs = [place.folder / name for name in ("first", "again")]
    runs = [place.headrace("train", place.run, "--out", str(out), *given) for out in outs]
    assert [run.ends(timeout_s=60.0) for run in runs] == [0, 0], runs[0].text()
    first, again = map(final, outs)
    assert first.version == again.version > 20
    assert first_difference(first.tensors, again.tensors) == ""


def test_what_was_recorded_trains_to_the_same_weights(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two samplers, as far ahead as they may be: nothing but the recording knows what came when."""
    sets = ("algorithm.name=appo", "algorithm.uses=2", "algorithm.buffer_batches=2")
    given = [word for setting in sets for word in ("--set", setting)]
    train = place.train("--record", "--quiet", "--stop-steps", "4000", *given)
    assert train.ends() == 0, train.text()
    steps = final(place.out).state["progress"]["learner_steps"]
    assert steps > 100
    replayed = place.headrace("replay", str(place.out))
    assert replayed.ends() == 0, replayed.text()
    found = re.fullmatch(r"identical: (\d+) tensors after (\d+) optimiser steps", _last(replayed))
    assert found is not None, replayed.text()
    assert int(found[1]) > 20 and int(found[2]) == steps

    # A run that is continued goes on unrecorded, and the recording says where it stops.
    more = place.train("--record", "--resume", "--quiet", "--stop-steps", "5000", *given)
    assert more.ends() == 0, more.text()
    assert "not recorded" in more.text()
    assert replay(place.out) == 1
    said = capsys.readouterr().out
    assert f"the recording ends at optimiser step {steps} of" in said
    assert said.endswith("the run went on without it\n")

    log = place.out / "record" / "rank0.log"
    log.write_bytes(log.read_bytes()[: log.stat().st_size // 2])
    assert replay(place.out) == 1
    assert capsys.readouterr().out.endswith("it was cut short\n")

    log.unlink()
    with pytest.raises(RecordError, match="train with --record"):
        replay(place.out)
    with pytest.raises(ConfigError, match="has no checkpoint yet"):
        replay(place.folder)


def test_two_ranks_have_a_recording_each(place: Place) -> None:
    broker, group = place.broker(), torchrun(place, "--set", "stop.steps=1500", "--record")
    actors = [place.actor(), place.actor()]
    assert group.ends(timeout_s=60.0) == 0, group.text()
    assert [actor.ends() for actor in actors] == [0, 0]
    assert broker.term() == 0
    together = place.module(
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "-m",
        "headrace.launch.replay",
        str(place.out),
    )
    assert together.ends(timeout_s=60.0) == 0, together.text()
    assert "identical: " in together.text()
    with pytest.raises(ConfigError, match="2 ranks recorded this, and here are 1"):
        replay(place.out)


def _last(process: Process) -> str:
    return process.lines()[-1]
