"""`headrace doctor` beside a real broker that has keys."""

import re

from headrace.launch import keygen
from tests.system.conftest import Place


def test_doctor_and_a_broker_with_keys(place: Place, tcp: str) -> None:
    """A broker with keys is asked with the right key, with another broker's, and with none."""
    mine, other = place.folder / "keys", place.folder / "other"
    for folder in (mine, other):
        keygen.generate(folder, {})
    curve = ["--set", "security.curve=true", "--set", f"security.keys={mine}"]
    broker = place.broker(*curve, bind=tcp)
    broker.says("run small at")
    asked = {
        "right": ["--key", str(mine / "actor.key")],
        "other": ["--key", str(other / "actor.key")],
        "none": [],
    }
    doctors = {
        which: place.headrace("doctor", "--broker", tcp, *key) for which, key in asked.items()
    }
    assert {which: doctor.ends() for which, doctor in doctors.items()} == {
        "right": 0,
        "other": 1,
        "none": 1,
    }
    said = {
        which: next(line for line in doctor.lines() if " handshake " in line)
        for which, doctor in doctors.items()
    }
    assert "done, encrypted" in said["right"]
    assert "the broker runs small" in doctors["right"].text()
    assert re.search(r"release +headrace \S+ on both ends", doctors["right"].text())
    assert re.search(r"its clock +within \d+ ms of the broker's", doctors["right"].text())
    assert "may be another broker's" in said["other"]
    assert "--key FILE" in said["none"]
    assert broker.term() == 0
