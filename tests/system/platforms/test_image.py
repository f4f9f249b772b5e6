"""The image, and a run in it."""

import pytest

from tests.system.platforms.image import NAME, Store, store

__all__ = ["store"]

MOST_BYTES = 1_000_000_000  # of a build for CPUs, its base included


@pytest.mark.alone
def test_the_image_is_small_and_trains_as_nobody(store: Store) -> None:
    taken = store.size(NAME)
    print(f"{taken / 1e6:.0f} MB by {store.driver}")  # noqa: T201
    assert taken < MOST_BYTES
    made = store("from", NAME)
    inside = ("run", "--isolation", "chroot", made, "--")
    assert store(*inside, "id", "-u") == "10001"
    asked = "headrace search cartpole --budget 1m 2>&1 || echo $?"
    said = "headrace: headrace search needs Optuna: build the image with --build-arg EXTRAS=search"
    assert store(*inside, "sh", "-c", asked).splitlines() == [said, "2"]
    train = ("headrace", "train", "cartpole", "--out", "/runs/one", "--set", "stop.steps=2000")
    store(*inside, *train, "--set", "stop.return=none", "--no-evaluate", "--quiet")
    store(*inside, "headrace", "audit", "/runs/one")  # 0 = exact
    store("rm", made)
