"""The script of docs/start/python.md, word for word."""

import json
import re
from pathlib import Path

from headrace.launch.config import run_file
from tests.system.conftest import Place

PAGE = Path(__file__).parents[3] / "docs" / "start" / "python.md"


def test_its_classes_and_functions_reach_the_run(place: Place) -> None:
    (script,) = (
        text
        for text in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
        if "class Tenth" in text
    )
    (place.folder / "script.py").write_text(script)
    done = place.python("script.py", env={"TMPDIR": str(place.folder)})
    assert done.ends() == 0, done.text()
    assert "evaluated: " in done.text() and done.lines()[-1] == "ended: stopped"
    (longest,) = re.findall(r"^longest episode: ([\d.]+)$", done.text(), re.MULTILINE)
    assert float(longest) >= 8  # a pole falls no sooner
    folder = place.folder / "headrace-runs" / "bare"
    assert f"writes to {folder.relative_to(place.folder)}" in done.text()
    run = run_file.load(str(folder / "run.toml"))
    assert run.env.id == "__main__:Tenth" and run.learner.lr == "__main__:falling"
    lines = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    rates = [line["lr"] for line in lines if "lr" in line]
    assert rates == sorted(rates, reverse=True) and rates[-1] < 0.6e-3
    assert not list(place.folder.glob("headrace-*.pickle"))
    assert "    return 1e-3 / (1 + steps / 10_000)" in (folder / "code" / "falling.py").read_text()
    assert (folder / "code" / "Tenth.py").read_text().startswith("class Tenth(gymnasium.Reward")
