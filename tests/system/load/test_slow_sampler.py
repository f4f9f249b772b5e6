"""One sampler ten times slower than the others: what is trained is young, and nothing is lost."""

from collections import deque
from pathlib import Path

import pytest

from headrace.learner.batches import recording
from headrace.learner.batches.recording import Accepted, Full, Trained
from headrace.learner.batches.step_ages import StepAges, UnrollAge
from tests.system.conftest import Place, until
from tests.system.harness.chaos import System
from tests.system.harness.figures import pick, say
from tests.system.harness.tally import tally

pytestmark = pytest.mark.alone  # a process that gets no core is a slow one

LENGTH, BATCH, MAX_LAG, TIMES, FAST = 20, 3, 2, 10, 3
UNROLLS = pick(20, 500)  # of the slow sampler, trained
# Slow by count and not by the clock: its step waits until each of the others has made ten.
PACED = f"""
import mmap, struct, time
from pathlib import Path
import gymnasium
import numpy as np

class Paced(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self):
        with open(Path(__file__).parent / "steps", "r+b") as file:
            self.shared = mmap.mmap(file.fileno(), 0)
        self.number, self.steps, self.at = -1, 0, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.number = seed // 1000
        self.at = 0
        return self.seen(), {{}}

    def seen(self):
        return self.np_random.random(4, np.float32)

    def step(self, action):
        self.steps += 1
        self.at += 1
        if self.number > 0:
            time.sleep(0.005)
            struct.pack_into("<q", self.shared, 8 * self.number, self.steps)
        elif self.number == 0:
            self.wait()
        return self.seen(), 1.0, self.at == 100, False, {{}}

    def wait(self):
        began = self.made()
        for _ in range(5000):  # the others may have ended
            if self.made() >= began + {FAST * TIMES}:
                return
            time.sleep(0.001)

    def made(self):
        return sum(struct.unpack_from("<{FAST + 1}q", self.shared))
"""
RUN = f"""
[run]
name = "paced"

[env]
id = "paced:Paced"

[unroll]
length = {LENGTH}
envs = 1

[model]
hidden = [16]

[algorithm]
name = "impala"
replay_share = 0.0

[pacing]
batch_unrolls = {BATCH}
max_lag = {MAX_LAG}

[broker]
beat_s = 0.2

[actor]
groups = 1
stepping = "threads"
drain_s = 5.0
"""


def test_what_a_slow_sampler_plays_is_young_when_it_is_trained(place: Place, tcp: str) -> None:
    place.toml("paced.py", PACED)
    (place.folder / "steps").write_bytes(bytes(8 * (FAST + 1)))
    system = System(place, tcp, samplers=1 + FAST, learners=0, run=RUN, allow=("paced",))
    system.extra = ("--record",)
    system.start("learner")
    place.trains(20)
    until(lambda: len(trained_of(system, "actor-0")) >= UNROLLS, f"{UNROLLS} slow unrolls")
    slow = {inc for inc, *_ in trained_of(system, "actor-0")}
    lost = system.unsettled()
    system.finish()

    found, account = tally(place.ledger), place.account()
    everyone, its_own = StepAges(), StepAges()
    steps, short = {True: 0, False: 0}, {True: 0, False: 0}
    for one, version in trainings(place.out):
        age = UnrollAge(version - one.version_min, version - one.version_max, one.steps)
        is_slow = one.inc in slow
        everyone.add([age])
        steps[is_slow] += one.steps
        short[is_slow] += one.steps < LENGTH - 1  # one step may only reset
        if is_slow:
            its_own.add([age])
    share = steps[True] / (steps[True] + steps[False])
    say(
        "slow sampler",
        **found.outcomes(),
        lost=len(lost),
        p99=everyone.figures()["lag_p99"],
        slow_p99=its_own.figures()["lag_p99"],
        slow_share=share,
        slow_cut=short[True],
        fast_cut=short[False],
    )
    assert everyone.figures()["lag_p99"] <= MAX_LAG + 2
    # It makes one step of every 31, and all of them are trained.
    assert 0.5 / (FAST * TIMES + 1) < share < 1.5 / (FAST * TIMES + 1)
    assert short[True] > UNROLLS / 2
    assert lost == set()
    assert (found.untrue(), found.ghosts(), found.twice()) == (0, 0, 0)
    assert {word: n for word, n in found.outcomes().items() if n and word != "trained"}.keys() <= {
        "abandoned"  # the rest that is no batch, at the end
    }
    assert (account.unaccounted(), account.untrue) == (0, 0)


def trained_of(system: System, name: str) -> set[tuple[int, int, int]]:
    """Trained unrolls of this sampler."""
    folder = system.place.ledger
    found = tally(folder)
    journal = system.roles[name].journal(folder)
    return {key for key in found.trained if journal and found.generated.get(key) == journal}


def trainings(out: Path) -> list[tuple[Accepted, int]]:
    """Every trained unroll of the recording, and the version that was trained with it."""
    found: list[tuple[Accepted, int]] = []
    filling: list[Accepted] = []
    given: deque[list[Accepted]] = deque()
    for entry in recording.entries(recording.path_of(out, 0)):
        match entry:
            case Accepted():
                filling.append(entry)
            case Full():
                given.append(filling)
                filling = []
            case Trained():
                found += [(one, entry.version - 1) for one in given.popleft()]
    return found
