"""Placeholders in keyword arguments: each environment learns which one it is."""

from typing import Any

import pytest

from headrace.actors.config import ActorConfig, EnvConfig
from headrace.actors.envs.where import Where, told
from headrace.actors.stepping.choose import make_stepper
from headrace.actors.stepping.inline import InlineStepper

HERE = Where("rack3.7", column=2, seed=41, group=1)


@pytest.mark.parametrize(
    ("said", "becomes"),
    [
        ("{column}", 2),
        ("{seed}", 41),
        ("{number}", 7),
        ("{sampler}", "rack3.7"),
        ("a-{sampler}-{column}.log", "a-rack3.7-2.log"),
        ("{group}", 1),
        ("{groups} {column", "{groups} {column"),
        (5, 5),
        ({"deep": ["{column}", ("{seed}",)]}, {"deep": [2, (41,)]}),
    ],
)
def test_what_a_placeholder_stands_for(said: Any, becomes: Any) -> None:
    config = EnvConfig(kwargs={"one": said}, wrappers=({"id": "m:W", "two": said},))
    found = told(config, HERE)
    assert found.kwargs == {"one": becomes} and found.wrappers[0] == {"id": "m:W", "two": becomes}
    assert found.id == config.id


def test_a_name_without_a_number_is_number_0() -> None:
    assert Where("evaluator").number == Where().number == 0


def test_a_samplers_environments_are_each_told_their_own() -> None:
    config = EnvConfig(
        "CartPole-v1",
        wrappers=(
            {
                "id": "tests.actors.envs.test_where:Named",
                "name": "{number}/{group}/{column}/{seed}",
            },
        ),
    )
    SEEN.clear()
    actor = ActorConfig(groups=2, stepping="inline")
    stepper = make_stepper(actor, config, envs=2, seed=10, sampler="actor-1")
    assert isinstance(stepper, InlineStepper)
    SEEN.clear()  # of those that were only looked at
    for group in stepper._groups:
        group.begin()
    stepper.close()
    assert SEEN == ["1/0/0/10", "1/0/1/11", "1/1/2/12", "1/1/3/13"]


SEEN: list[str] = []


def Named(env: Any, name: str) -> Any:  # noqa: N802 - stands for a class
    SEEN.append(name)
    return env
