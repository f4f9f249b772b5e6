"""The cheapest machines, against trying every mix; the published case of eight GPUs."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.launch.plan import cheapest
from headrace.launch.plan.machines import Machine

METAL = Machine("g4dn.metal", 96, 3.6123, gpu="T4", gpus=8)
XLARGE = Machine("g4dn.xlarge", 4, 0.1578, gpu="T4", gpus=1)
PLAIN = Machine("m5.2xlarge", 8, 0.1958)


def machine(number: int, vcpus: int, cents: int, gpus: int) -> Machine:
    return Machine(f"m{number}", vcpus, cents / 100, gpu="G" if gpus else "", gpus=gpus)


kinds = st.lists(
    st.tuples(st.integers(1, 6), st.integers(1, 40), st.integers(0, 3)), min_size=1, max_size=3
).map(lambda found: [machine(number, *one) for number, one in enumerate(found)])


def enough(mix: "cheapest.Mix", gpus: int, cores: int) -> bool:
    return (
        sum(one.gpus * count for one, count in mix.items()) >= gpus
        and sum(one.vcpus * count for one, count in mix.items()) >= cores
    )


@settings(deadline=None, max_examples=150)
@given(kinds, st.integers(0, 4), st.integers(0, 9))
def test_no_other_mix_is_cheaper(machines: list[Machine], gpus: int, cores: int) -> None:
    found = cheapest.cheapest(machines, gpu="G", gpus=gpus, cores=cores)
    # So many of each are enough of any one, if it is enough at all.
    every = itertools.product(range(max(gpus, cores) + 1), repeat=len(machines))
    prices = [
        cheapest.price(mix)
        for counts in every
        if enough(mix := dict(zip(machines, counts, strict=True)), gpus, cores)
    ]
    if found is None:
        assert not prices
    else:
        assert enough(found, gpus, cores)
        assert cheapest.price(found) == pytest.approx(min(prices))


def test_eight_gpus_with_eight_cores_each() -> None:
    """Published: 2.0456 dollars an hour, beside 3.6123 for one machine."""
    mix = cheapest.cheapest([METAL, XLARGE, PLAIN], gpu="T4", gpus=8, cores=64)
    assert mix == {XLARGE: 8, PLAIN: 4}
    single = cheapest.smallest_single([METAL, XLARGE, PLAIN], gpu="T4", gpus=8, cores=64)
    assert single == METAL
    assert cheapest.price(mix) == pytest.approx(2.0456)
    assert METAL.price / cheapest.price(mix) == pytest.approx(1.766, abs=1e-3)


def test_gpus_of_another_kind_do_not_count() -> None:
    other = Machine("other", 64, 0.01, gpu="A10", gpus=8)
    mix = cheapest.cheapest([XLARGE, other], gpu="T4", gpus=1, cores=60)
    assert mix == {XLARGE: 1, other: 1}, "its cores do"
    assert cheapest.cheapest([other], gpu="T4", gpus=1, cores=1) is None
    assert cheapest.smallest_single([other], gpu="T4", gpus=1, cores=1) is None


def test_ten_thousand_cores_and_sixty_four_gpus() -> None:
    mix = cheapest.cheapest([METAL, XLARGE, PLAIN], gpu="T4", gpus=64, cores=10_000)
    assert mix is not None
    assert enough(mix, 64, 10_000)
