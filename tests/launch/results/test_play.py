"""headrace play: what it prints, and a video that is whole or not there."""

import os
import re
import resource
import statistics
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from imageio import v2 as imageio
from PIL import Image, ImageSequence

from headrace.actors.config import EnvConfig, EvaluateConfig
from headrace.actors.envs.make import probe
from headrace.actors.evaluator import Scores
from headrace.launch import cli
from headrace.launch.config import run_file
from headrace.launch.results import loaded_run, play
from headrace.launch.results.video import Gif, Video, VideoError
from headrace.learner.spaces import Leaf, Spaces, discrete

NIM = "headrace.actors.envs.toys.several_agents:Nim"


class Cards(gymnasium.Env[Any, Any]):
    """Pays 1 for each step; its seed says how many. Pictures count the steps."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, render_mode: str | None = None, show: str = "picture") -> None:
        self.render_mode, self._show = render_mode, show
        self._left = self._steps = 0

    def reset(
        self,
        *,
        seed: int | None = None,
        options: Any = None,  # noqa: ARG002
    ) -> tuple[Any, dict[str, Any]]:
        self._left = 3 + (seed or 0) % 4
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:  # noqa: ARG002
        self._left -= 1
        self._steps += 1
        return np.zeros(2, np.float32), 1.0, self._left == 0, False, {}

    def render(self) -> Any:
        if self._show == "nothing":
            return None
        if self._show == "silent":
            raise NotImplementedError
        if self._show == "trouble":
            raise RuntimeError("no screen\nat all")
        height = 31 if self._show == "picture" else 30 + self._steps
        frame = np.full((height, 45, 3), 40, np.uint8)
        frame[:, : 3 * self._steps] = 200
        return frame


class Blind(Cards):
    """Takes no render_mode."""

    def __init__(self) -> None:
        super().__init__()


SPACES = Spaces((Leaf("obs", "<f4", (2,)),), discrete(2))


@pytest.fixture(autouse=True)
def named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environments of this file by a name that the run can give; what a video sets in the
    process is taken back."""
    monkeypatch.setitem(sys.modules, "cards_of_a_test", sys.modules[__name__])
    monkeypatch.setattr(os, "environ", os.environ.copy())


@pytest.fixture
def run(leave_run: Any, tmp_path: Path) -> Path:
    return leave(leave_run, tmp_path / "run", "Cards")


def leave(leave_run: Any, folder: Path, name: str, *sets: str) -> Path:
    leave_run(folder, SPACES, [f"env.id=cards_of_a_test:{name}", *sets])
    return folder


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert cli.main(["play", *words]) == 0
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *words: str, where: str = "") -> str:
    """The one line; below it stands `where`, the user's own code, if that is what failed."""
    assert cli.main(["play", *words]) == 2
    line, *below = capsys.readouterr().err.splitlines()
    assert bool(below) == bool(where) and where in "".join(below)
    return line


def test_the_numbers_are_those_of_the_episodes(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = said(capsys, str(run), "--episodes", "6", "--seed", "1")
    lengths = [3 + seed % 4 for seed in range(1, 7)]
    assert "6 episodes, greedy, seeds 1 to 6" in out
    assert f"mean {statistics.mean(lengths):.2f}, 95 % interval " in out
    low, high = map(float, re.findall(r"interval (\S+) to (\S+),", out)[0])
    half = 2.5706 * statistics.stdev(lengths) / 6**0.5  # Student's t of 5 degrees of freedom
    assert (high - low) / 2 == pytest.approx(half, abs=0.01)
    assert "min 3.00, max 6.00" in out and "version 7" in out
    assert "min 3, max 6" in out


def test_one_episode_has_no_interval(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = said(capsys, str(run), "--episodes", "1", "--sampled")
    assert "interval" not in out and "sampled" in out


# imageio's own reader of MP4 leaves its pipes to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    "suffix", [".gif", ".GIF", pytest.param(".mp4", marks=pytest.mark.processes)]
)
def test_a_video_read_back(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], suffix: str
) -> None:
    file = tmp_path / "new" / f"film{suffix}"
    out = said(capsys, str(run), "--episodes", "3", "--seed", "0", "--video", str(file))
    assert str(file) in out
    reader: Any
    with imageio.get_reader(file) as reader:
        frames = [np.asarray(frame) for frame in reader.iter_data()]
    assert len(frames) == 3 + 4 + 5
    # MP4 has even sizes only.
    assert frames[0].shape[:2] == ((32, 46) if suffix == ".mp4" else (31, 45))
    bright = [int((frame[5, :, 0] > 120).sum()) for frame in frames]
    assert all(abs(width - 3 * (at + 1)) <= 2 for at, width in enumerate(bright)), bright
    assert [path.name for path in file.parent.iterdir()] == [file.name]


@pytest.mark.parametrize(
    ("name", "show", "words"),
    [
        ("Blind", "", "cannot be rendered: it takes no render_mode"),
        ("Cards", "nothing", "renders nothing, not a picture"),
        ("Cards", "trouble", "cannot be rendered: no screen"),
        ("Cards", "silent", "cards_of_a_test:Cards has no render() that gives rgb_array pictures"),
        ("Cards", "growing", "pictures of several sizes"),
    ],
)
def test_environments_that_cannot_be_filmed(
    leave_run: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    show: str,
    words: str,
) -> None:
    run = leave(leave_run, tmp_path / "run", name, *([f"env.kwargs.show={show}"] if show else []))
    where = "in render" if show in ("trouble", "silent") else ""
    line = refused(capsys, str(run), "--video", str(tmp_path / "film.gif"), where=where)
    assert words in line
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize(
    ("file", "missing"), [("a.gif", "PIL"), ("a.mp4", "imageio"), ("a.mp4", "imageio_ffmpeg")]
)
def test_a_missing_package_is_named(
    run: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    file: str,
    missing: str,
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    line = refused(capsys, str(run), "--video", str(run / file))
    assert "pip install 'headrace[video]'" in line and missing in line


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--video", "film.avi"], "its name must end in .gif or .mp4"),
        (["--episodes", "0"], "play at least one"),
        (["--seed", "-5"], "--seed -5: it must be 0 to 2147483647"),
        (["--seed", "2147483648"], "--seed 2147483648: it must be 0 to 2147483647"),
        (["--set", "model.kind=nature"], "only env and evaluate may be changed"),
        (["--set", "env.id=CartPole-v1"], "CartPole-v1"),
        (["--checkpoint", "best"], "only an evaluator writes one"),
    ],
)
def test_what_cannot_be_played(
    run: Path, capsys: pytest.CaptureFixture[str], words: list[str], expected: str
) -> None:
    assert expected in refused(capsys, str(run), *words)


def test_a_video_whose_playing_fails_leaves_nothing(tmp_path: Path) -> None:
    env = Cards()
    with pytest.raises(KeyboardInterrupt), Video(tmp_path / "a.gif", "Cards") as film:
        env.reset(seed=0)
        env.step(0)
        film.add_frame(env)
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(VideoError):
        Video(tmp_path / "a.gif.txt", "Cards")


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("dir.gif", "it is a folder; name a file"),
        ("dir.mp4", "it is a folder; name a file"),
        ("file/x.gif", "file is no folder"),
        ("file/deeper/x.gif", "deeper is no folder"),
        ("/dev/null/x.gif", "/dev/null is no folder"),
        ("/proc/x.mp4", "No such file or directory"),
    ],
)
def test_a_place_that_cannot_be_had_is_found_before_anything_is_played(
    run: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    file: str,
    words: str,
) -> None:
    monkeypatch.setattr(Cards, "reset", None)
    for name in ("dir.gif", "dir.mp4"):
        (run / name).mkdir()
    (run / "file").write_text("mine")
    before = sorted(run.iterdir())
    line = refused(capsys, str(run), "--video", str(run / file))
    assert line.startswith(f"headrace: --video {run / file} cannot be written: ") and words in line
    assert sorted(run.iterdir()) == before and (run / "file").read_text() == "mine"


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("a.gif", "File too large"),
        pytest.param("a.mp4", "ffmpeg ended early", marks=pytest.mark.processes),
    ],
)
def test_a_full_disk_leaves_what_was_there(
    run: Path, capsys: pytest.CaptureFixture[str], file: str, words: str
) -> None:
    """No file may grow beyond 100 bytes, ffmpeg's neither. A part of an earlier attempt goes."""
    (run / file).write_text("an older film")
    (run / f".a.part{file[1:]}").write_text("half a film")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
        line = refused(capsys, str(run), "--episodes", "1", "--video", str(run / file))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert words in line
    assert (run / file).read_text() == "an older film"
    assert sorted(path.name for path in run.iterdir()) == [file, "checkpoints", "run.toml"]


def test_a_gif_is_written_as_its_pictures_come(tmp_path: Path) -> None:
    """Any colours, any change from one to the next, none at all, and each is there again."""
    rng = np.random.default_rng(0)
    first = rng.choice(rng.integers(0, 256, (200, 3), np.uint8), (20, 24))
    second = first.copy()
    second[5:8, 10:20] = [250, 0, 3]
    pictures = [first, second, second, first]
    with (tmp_path / "a.gif").open("wb") as file:
        gif = Gif(file, 20.0)
        sizes = []
        for picture in pictures:
            gif.append_data(picture)
            sizes.append(file.tell())
        gif.close()
    assert sorted(set(sizes)) == sizes  # each was written at once
    with Image.open(tmp_path / "a.gif") as image:
        assert (image.info["duration"], image.info["loop"]) == (50, 0)
        shown = [np.asarray(frame.convert("RGB")) for frame in ImageSequence.Iterator(image)]
    assert len(shown) == len(pictures)
    for there, here in zip(shown, pictures, strict=True):
        np.testing.assert_array_equal(there, here)


def test_settings_reach_the_environment(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = refused(capsys, str(run), "--set", "env.kwargs.shape=1")
    assert "shape" in line
    found = loaded_run.load(run)
    assert play.result_text(found, Scores([1.0], [1]), "x").count("\n") == 3


def nim(leave_run: Any, folder: Path, *, seed: int) -> Path:
    """Leaves a run of a game of two."""
    spaces = probe(EnvConfig(NIM))
    leave_run(folder, spaces, [f"env.id={NIM}", "unroll.envs=8"], seed=seed)
    return folder


@pytest.mark.parametrize("against", ["random", f"{__name__}:one_stone", "folder"])
def test_games_against_others_are_won_drawn_or_lost(
    against: str, leave_run: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = nim(leave_run, tmp_path / "mine", seed=3)
    if against == "folder":
        against = str(nim(leave_run, tmp_path / "other", seed=5))
    text = said(capsys, str(mine), "--episodes", "30", "--set", f"evaluate.against={against}")
    found = re.search(r"^outcome +(\d+) won, (\d+) drawn, (\d+) lost against (.*)$", text, re.M)
    assert found is not None and found[4] == against
    won, drawn, lost = (int(found[at]) for at in (1, 2, 3))
    assert won + drawn + lost == 30 and won and lost
    assert f"return      mean {(won - lost) / 30:.2f}" in text


def one_stone(obs: dict[str, Any]) -> Any:
    return np.zeros(len(obs["obs"]), np.int64)


@pytest.mark.parametrize(
    ("against", "words"),
    [
        ("nobody", "evaluate.against = 'nobody' is no folder of a run"),
        ("no_such_module:play", 'evaluate.against = "no_such_module:play" cannot be imported'),
        ("cards", "its policy was trained for"),
    ],
)
def test_who_cannot_be_played_against_is_said_in_a_line(
    against: str, words: str, leave_run: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = nim(leave_run, tmp_path / "mine", seed=3)
    if against == "cards":
        against = str(leave(leave_run, tmp_path / "cards", "Cards"))
    assert words in refused(capsys, str(mine), "--set", f"evaluate.against={against}")


def test_code_of_an_opponent_s_run_is_asked_for_first(
    leave_run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker may name any folder of the machine."""
    other = nim(leave_run, tmp_path / "other", seed=5)
    how = EvaluateConfig(against=str(other))
    monkeypatch.setattr(loaded_run, "build", lambda *_, **__: pytest.fail("its code was asked"))

    def check(run: run_file.Run) -> None:
        raise run_file.ConfigError(f"not {run.env.id}")

    with pytest.raises(run_file.ConfigError, match="not headrace"):
        loaded_run.opponent(how, probe(EnvConfig(NIM)), check)
