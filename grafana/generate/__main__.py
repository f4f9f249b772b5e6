"""python -m grafana.generate: writes grafana/dashboards/*.json."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from grafana.generate.boards import BOARDS
from grafana.generate.grafana_json import rendered

GRAFANA = Path(__file__).parents[1]


def files() -> Iterator[tuple[Path, str]]:
    """Yields every generated file with its text."""
    for board in BOARDS:
        text = json.dumps(rendered(board), indent=2, ensure_ascii=False)
        yield GRAFANA / "dashboards" / f"{board.name}.json", f"{text}\n"


def main() -> int:
    if not (GRAFANA / "prometheus.yml").is_file():  # a wheel carries the files ready made
        print(f"{GRAFANA} is not there; run it in a checkout", file=sys.stderr)  # noqa: T201
        return 2
    for path, text in files():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
