"""Run files: what loads, what is refused and in which words, and that nothing gets lost."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.actors.config import EnvConfig
from headrace.launch.config import (
    algorithm_defaults,
    differences,
    run_file,
    run_sections,
    toml_text,
)
from headrace.launch.config.run_file import ConfigError, Run
from headrace.launch.config.run_sections import RunSection, StopSection
from headrace.launch.config.shared_run import from_shared, shared


@pytest.fixture
def write(tmp_path: Path) -> Any:
    """Writes mine.toml and gives its path."""

    def _write(text: str) -> str:
        path = tmp_path / "mine.toml"
        path.write_text(text, encoding="utf-8")
        return str(path)

    return _write


def refusal(name_or_path: str, *sets: str) -> str:
    with pytest.raises(ConfigError) as caught:
        run_file.load(name_or_path, sets)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("name", run_file.shipped())
def test_every_shipped_run_loads_under_its_own_name(name: str) -> None:
    assert run_file.load(name).run.name == name


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("evaluate.against=random", "evaluate.against needs a policy that plays all agents"),
        ("env.curriculum=own:harder", "env.curriculum needs a policy that plays all agents"),
        ("env.agents=[]", "name its own in env.agents"),
    ],
)
def test_a_policy_of_some_agents_cannot_have_what_needs_all(setting: str, words: str) -> None:
    seated = ('env.agents=["a"]', 'env.others={ b = "random" }')
    assert words in refusal("nim", *seated, setting)


def test_both_cartpole_runs_are_shipped() -> None:
    assert {"cartpole", "cartpole-vector"} <= set(run_file.shipped())


def test_an_empty_file_is_the_defaults_named_after_the_file(write: Any) -> None:
    run = run_file.load(write(""))
    assert run.run.name == "mine"
    plain = run_file.to_dict(Run(run=RunSection(name="mine")))
    for place, value in algorithm_defaults.of({}).items():
        section, key = place.split(".")
        plain[section][key] = value
    assert run_file.to_dict(run) == plain


def test_a_whole_number_is_good_enough_for_a_float(write: Any) -> None:
    assert run_file.load(write("[learner]\nlr = 1")).learner.lr == 1.0


class TestSet:
    def test_values_are_toml(self) -> None:
        sets = ["learner.lr=1e-4", "model.hidden=[8]", "model.separate=false", "stop.return=9"]
        run = run_file.load("cartpole", sets)
        assert run.learner.lr == 1e-4
        assert run.model.hidden == (8,)
        assert run.model.separate is False
        assert run.stop.return_ == 9.0

    def test_bare_words_are_text(self) -> None:
        assert run_file.load("cartpole", ["env.id=Acrobot-v1"]).env.id == "Acrobot-v1"

    def test_the_last_one_wins(self) -> None:
        assert run_file.load("cartpole", ["run.seed=4", "run.seed=5"]).run.seed == 5

    def test_a_longer_path_reaches_into_a_table(self) -> None:
        sets = ["env.kwargs={a = 1}", "env.kwargs.sutton=true"]
        assert run_file.load("cartpole", sets).env.kwargs == {"a": 1, "sutton": True}

    def test_a_line_break_smuggles_no_second_key_in(self) -> None:
        run = run_file.load("cartpole", ['env.id="x"\nother = 1'])
        assert run.env.id == '"x"\nother = 1'

    @pytest.mark.parametrize(
        "setting", ["", "learner", "learner.lr", "lr=3", ".lr=3", "learner.=3"]
    )
    def test_the_form_is_taught(self, setting: str) -> None:
        assert "write section.key=value" in refusal("cartpole", setting)

    def test_a_plain_key_has_no_keys_below_it(self) -> None:
        assert "learner.lr is no table" in refusal("cartpole", "learner.lr.x=2")

    def test_the_message_names_the_setting_not_the_file(self) -> None:
        assert refusal("cartpole", "learner.eps=0") == (
            "--set learner.eps=0: learner.eps is 0; it must be a number > 0"
        )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[learner]\nlrr = 1", "learner.lrr is no key of [learner]; did you mean lr?"),
        (
            "[learner]\ngamma = 1",
            "learner.gamma is no key of [learner]; did you mean algorithm.gamma?",
        ),
        ("[stop]\nzzz = 1", "stop.zzz is no key of [stop]; there are return, steps, seconds"),
        ("[lerner]\nlr = 1", "[lerner] is no section; did you mean learner?"),
        ("lr = 1", "lr stands outside every section; did you mean learner.lr?"),
        ("learner = 1", "learner is 1; it must be a section [learner]"),
        (
            "[learner]\nlr = 'fast'",
            'learner.lr is "fast"; it must be a number > 0 and <= 10 or a list',
        ),
        ("[learner]\nlr = 'fast'", 'or text, as module:function, or "auto"'),
        ("[learner]\nlr = true", "learner.lr is true; it must be a number > 0 and <= 10 or a list"),
        ("[run]\nseed = -1", "run.seed is -1; it must be an integer >= 0 and < 2147483648"),
        ("[algorithm]\nname = 'dqn'", 'it must be "appo" or "impala" or "ppo"'),
        ("[learner]\nlr = [[0]]", "each item [an integer >= 0, a number >= 0]"),
        ("[learner]\nlr = []", "learner.lr: it is an empty list"),
        ("[learner]\nlr = [[0, 1], [9, 11]]", "is above 10; each must be <= 10"),
        (
            "[algorithm]\nname = 'appo'\nkl_target = 0.01\nkl_coef = 1.0\ntarget_interval = 1",
            "a target network that was just copied is 0; raise algorithm.target_interval",
        ),
        (
            "[algorithm]\nclip = [[9, 0.1], [0, 0.2]]",
            "algorithm.clip: its steps are [9, 0]; they must rise from pair to pair",
        ),
        ("[algorithm]\nname = 'ppo'\nnormalise_advantages = 'running'", "is for impala and appo"),
        ("[algorithm]\nkl_target = 0.01", "algorithm.kl_coef, which is 0; set it to 1.0"),
        (
            "[algorithm]\nname = 'ppo'\nminibatches = 9\n[unroll]\nlength = 2\nenvs = 2\n"
            "[pacing]\nbatch_unrolls = 2",
            "algorithm.minibatches is 9, a batch has 8 steps",
        ),
        (
            "[algorithm]\nname = 'ppo'\nminibatches = 5\n[unroll]\nlength = 2\nenvs = 2\n"
            "[pacing]\nbatch_unrolls = 2\n[model]\ncore = 'gru'",
            "algorithm.minibatches is 5, a batch has 4 columns",
        ),
        (
            "[model]\nhidden = [64, 0]",
            "model.hidden is [64, 0]; it must be a list, each item an integer >= 1",
        ),
        ("[model]\nseparate = 1", "model.separate is 1; it must be true or false"),
        ("[env]\nid = 3", "env.id is 3; it must be text"),
        ("[env]\nkwargs = 3", "env.kwargs is 3; it must be a table"),
        (
            "[env]\nkwargs = {day = 1979-05-27}",
            "1979-05-27 }; a run holds only text, 64-bit integers",
        ),
        ("[env]\nkwargs = {big = 9223372036854775808}", "a run holds only text, 64-bit integers"),
        ("[stop]\nreturn = inf", "stop.return is inf; a run holds only"),
        ("[learner]\nlr = nan", "learner.lr is nan; it must be a number"),
        ("[run]\nname = '../up'", 'run.name is "../up"; it must be text matching'),
        ('[run]\nname = "a\\n"', "it must be text matching"),
        (
            "[pacing]\nmax_lag = 64",
            "pacing.max_lag_hard is 64; it must be above pacing.max_lag, 64",
        ),
        ("[broker]\nbeat_s = 10", "broker.lease_s is 10.0; it must be above broker.beat_s, 10.0"),
        ("[run]\nseed 1", "Expected '=' after a key in a key/value pair (at line 2, column 6)"),
        ("[run]\nseed =", "(at line 2, the end of the file)"),
    ],
)
def test_refusals_name_the_place_and_the_remedy(write: Any, text: str, message: str) -> None:
    said = refusal(write(text))
    assert said.startswith("mine.toml: ")
    assert message in said


def test_a_missing_file_or_name_lists_the_shipped_runs() -> None:
    assert refusal("gone.toml").startswith("gone.toml: no such file; shipped runs: ")
    assert "cartpole, cartpole-impala, cartpole-ppo, cartpole-vector" in refusal("cartpol")


def test_a_file_that_is_not_text_says_so(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_bytes(b"\xff\xfe")
    assert refusal(str(path)).endswith("mine.toml: not UTF-8 text")


# What TOML and msgpack both carry: no surrogates, 64-bit integers, finite numbers.
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
INTEGERS = st.integers(-(2**63), 2**63 - 1)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
KWARGS = st.recursive(
    st.booleans() | INTEGERS | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
RUNS = st.builds(
    Run,
    run=st.builds(RunSection, name=st.just("round"), seed=st.integers(0, 2**31 - 1)),
    env=st.builds(EnvConfig, id=TEXT, kwargs=st.dictionaries(TEXT, KWARGS, max_size=3)),
    stop=st.builds(
        StopSection,
        return_=st.none() | NUMBERS,
        steps=st.none() | st.integers(1, 2**63 - 1),
        seconds=st.none() | st.floats(1e-300, 1e300),
    ),
)


@pytest.mark.slow
@settings(deadline=None)  # a busy machine is no failure
@given(RUNS)
def test_the_effective_run_loads_to_an_equal_run(tmp_path_factory: Any, run: Run) -> None:
    path = tmp_path_factory.mktemp("effective") / "effective.toml"
    path.write_bytes(run_file.effective(run).encode())
    assert run_file.load(str(path)) == run


OPTIONAL = [
    (section, name)
    for section, keys in run_file.SECTIONS.items()
    for name, key in keys.items()
    if toml_text.optional(key.type)
]


def test_what_may_be_left_out_can_be_taken_away() -> None:
    assert ("stop", "steps") in OPTIONAL and ("learner", "lr") not in OPTIONAL
    given = run_file.load("cartpole", ["stop.return=5", "stop.steps=7", "stop.seconds=9"])
    assert (given.stop.return_, given.stop.steps, given.stop.seconds) == (5, 7, 9)
    sets = [f"{section}.{name}=none" for section, name in OPTIONAL]
    run = run_file.load("cartpole", ["stop.steps=7", *sets, "stop.seconds= none "])
    plain = run_file.to_dict(run)
    assert all(plain[section][name] is None for section, name in OPTIONAL)
    assert run_file.load("cartpole", ["stop.steps=none", "stop.steps=8"]).stop.steps == 8


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("learner.lr=none", 'learner.lr is "none"; it must be a number'),
        ("stop.stepps=none", "did you mean steps"),
        ("stop.steps.x=none", "stop.steps is no table"),
        ("stop.steps=nothing", 'stop.steps is "nothing"; it must be an integer'),
    ],
)
def test_what_must_be_there_cannot(setting: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        run_file.load("cartpole", ["stop.steps=7", setting])


def test_none_is_a_value_where_it_is_one() -> None:
    assert run_file.load("memory", ["model.core=none"]).model.core == "none"
    assert run_file.load("cartpole", ["env.kwargs.x=none"]).env.kwargs == {"x": "none"}


def test_the_effective_run_says_what_each_key_means() -> None:
    text = run_file.effective(run_file.load("cartpole"))
    assert "\nlr = [[0, 0.003], [800000, 0.0]]  # its step size; auto: ppo's is 1e-3 for" in text
    assert (
        "\n# seconds is not set  # limit on seconds at work, over all starts; a number > 0\n"
        in text
    )
    assert "\n[learner]\n# Sets the optimiser and the machine it runs on.\n" in text


class TestShared:
    def test_a_peer_rebuilds_the_same_agreement(self) -> None:
        run = run_file.load("cartpole", ["env.kwargs={a = [1, 2.5]}"])
        wire = msgspec.msgpack.decode(msgspec.msgpack.encode(shared(run)))
        rebuilt = from_shared(wire)
        assert wire == shared(run) == shared(rebuilt)
        assert (rebuilt.env, rebuilt.model, rebuilt.pacing) == (run.env, run.model, run.pacing)

    def test_each_process_keeps_its_own_affairs(self) -> None:
        one = run_file.load("cartpole", ["run.seed=1", "learner.lr=0.1", "actor.count=9"])
        other = run_file.load("cartpole", ["run.seed=2"])
        assert differences.first_difference(shared(one), shared(other)) is None

    def test_the_first_difference_is_named(self) -> None:
        there = shared(run_file.load("cartpole"))
        here = shared(run_file.load("cartpole", ["algorithm.gamma=0.98", "unroll.envs=8"]))
        assert differences.first_difference(there, here) == "algorithm.gamma: 0.99 there, 0.98 here"

    def test_a_key_only_one_side_knows_is_a_difference(self) -> None:
        there, here = {"env": {"id": "a"}}, {"env": {"id": "a", "new": 1}}
        assert differences.first_difference(there, here) == "env.new: absent there, 1 here"

    def test_a_key_of_the_first_weights_keeps_no_run_from_going_on(self) -> None:
        """A checkpoint of before the key does not hold it."""
        run = shared(run_file.load("memory"))
        before = {**run, "model": {k: v for k, v in run["model"].items() if k != "core_bias"}}
        assert differences.no_continuation(before, run) is None
        assert differences.no_continuation(shared(run_file.load("cartpole")), run) is not None

    def test_a_run_of_before_transformers_goes_on(self) -> None:
        later = ("core_context", "core_layers")
        run = shared(run_file.load("memory"))
        before = {**run, "model": {k: v for k, v in run["model"].items() if k not in later}}
        assert differences.no_continuation(before, run) is None
        attends = shared(run_file.load("memory", ["model.core=transformer"]))
        words = differences.no_continuation(before, attends)
        assert words is not None and words.startswith("model.core: ")
        wider = shared(run_file.load("memory", ["model.core=transformer", "model.core_context=8"]))
        words = differences.no_continuation(attends, wider)
        assert words == "model.core_context: 32 there, 8 here"

    def test_a_run_of_before_normalised_images_goes_on_without_them(self) -> None:
        run = shared(run_file.load("pong", ["model.normalise_images=false"]))
        before = {**run, "model": {k: v for k, v in run["model"].items() if "images" not in k}}
        assert differences.no_continuation(before, run) is None
        words = differences.no_continuation(before, shared(run_file.load("pong")))
        assert words == "model.normalise_images: absent there, true here"

    def test_one_and_one_point_nought_are_not_the_same(self) -> None:
        whole, real = (
            run_file.load("cartpole", [f"env.kwargs={{a = {number}}}"]) for number in ("1", "1.0")
        )
        assert differences.first_difference(shared(whole), shared(real)) is not None

    def test_what_this_version_does_not_share_is_refused(self) -> None:
        data = shared(run_file.load("cartpole"))
        with pytest.raises(ConfigError, match="not the sections this version shares: pacing"):
            from_shared({name: table for name, table in data.items() if name != "pacing"})
        with pytest.raises(ConfigError, match=r"the broker's run: unroll\.length is 0"):
            from_shared({**data, "unroll": {"length": 0}})


def test_long_values_are_cut_in_messages() -> None:
    assert len(toml_text.shown(list(range(1000)))) < 100


@pytest.mark.processes
def test_importing_the_configuration_brings_in_no_heavy_package() -> None:
    probe = (
        "import sys, headrace.launch.config.run_file;"
        " print(sorted({'torch', 'gymnasium', 'zmq'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        (("env.metrics=['a', 'a']",), "'a' stands there twice"),
        (("env.metrics=['training']",), "'training' means a return in stop.metric"),
        (("env.metrics=['a', 'a.min']",), "'a.min' would be taken for the min of 'a'"),
        (("stop.metric=won", "stop.return=1"), "'won' is neither training nor evaluation"),
        (("stop.metric=evaluation.won", "stop.return=1"), "nor evaluation.NAME of one"),
        (("env.metrics=['evaluation.won']",), "means a return in stop.metric"),
        (("env.metrics=['']",), "env.metrics"),
        ((f"env.metrics=['{'x' * 41}']",), "env.metrics"),
        ((f"env.metrics={[f'm{n}' for n in range(10_000)]}",), "a list of at most 16"),
    ],
)
def test_metrics_that_cannot_be(sets: tuple[str, ...], words: str) -> None:
    with pytest.raises(run_file.ConfigError) as error:
        run_file.load("cartpole", sets)
    line = str(error.value)
    assert words in line and len(line) < 400 and "\n" not in line


def test_a_goal_by_a_metric_needs_a_number() -> None:
    run = run_file.Run(env=EnvConfig(metrics=("won",)), stop=StopSection(metric="won"))
    with pytest.raises(run_file.ConfigError, match=r"'won', and stop\.return is not set"):
        run_sections.check(run)
