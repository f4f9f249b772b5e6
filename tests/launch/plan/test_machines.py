"""Price files: SkyPilot's columns, the lowest price of each machine, and what is wrong with one."""

from pathlib import Path

import pytest

from headrace.launch.config.run_file import ConfigError
from headrace.launch.plan import machines

HEAD = "InstanceType,vCPUs,MemoryGiB,AcceleratorName,AcceleratorCount,Price,SpotPrice,Region\n"
# A row of a catalogue leaves out what it does not know, and a half GPU is for other uses.
ROWS = """small,4,16,,,0.2,0.05,east
small,4,16,,,0.1,0.09,west
one,8.0,32.0,T4,1.0,0.5,,east
half,4,16,T4,0.5,0.3,,east
unknown,,,T4,1,0.1,,east
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "prices.csv"
    path.write_text(text)
    return path


def test_each_machine_is_taken_at_its_lowest_price(tmp_path: Path) -> None:
    found = machines.read(written(tmp_path, HEAD + ROWS), spot=False, region="")
    assert {one.name: one.price for one in found} == {"small": 0.1, "one": 0.5, "half": 0.3}
    gpus = {one.name: (one.gpu, one.gpus) for one in found}
    assert gpus == {"small": ("", 0), "one": ("T4", 1), "half": ("", 0)}


def test_spot_prices_and_a_region_are_other_prices(tmp_path: Path) -> None:
    path = written(tmp_path, HEAD + ROWS)
    (only,) = machines.read(path, spot=True, region="west")
    assert (only.name, only.price) == ("small", 0.09)


def test_machines_are_chosen_by_name(tmp_path: Path) -> None:
    found = machines.read(written(tmp_path, HEAD + ROWS), spot=False, region="")
    assert [one.name for one in machines.named(found, ["one"])] == ["one"]
    with pytest.raises(ConfigError, match="the prices have no machine p5"):
        machines.named(found, ["one", "p5"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("InstanceType,Price\nsmall,0.1\n", "has no column vCPUs"),
        (HEAD + "small,four,16,,,0.1,,east\n", r"line 2: vCPUs = 'four' is no number"),
        (HEAD + "small,4,16,,,-1,,east\n", r"line 2: Price = '-1' is no number"),
        (HEAD + "small,4,16,,,nan,,east\n", r"line 2: Price = 'nan' is no number"),
        (HEAD + "huge,40000,16,,,1,,east\n", "huge has 40000 vCPUs"),
        (HEAD, "has no machine with a price"),
        ("", "has no column InstanceType"),
    ],
)
def test_a_wrong_file_is_one_line(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        machines.read(written(tmp_path, text), spot=False, region="")


def test_a_file_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read the prices .*No such file"):
        machines.read(tmp_path / "none.csv", spot=False, region="")
    (tmp_path / "bytes.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot read the prices"):
        machines.read(tmp_path / "bytes.csv", spot=False, region="")


def test_a_region_without_machines_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no machine with a spot price in region moon"):
        machines.read(written(tmp_path, HEAD + ROWS), spot=True, region="moon")
