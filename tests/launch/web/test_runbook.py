"""The page of the runbook has a section for each alert, and every role serves it."""

import re
import urllib.request
from pathlib import Path

from headrace.launch.web import http, runbook

ALERTS = re.findall(r"- alert: (\w+)", Path("grafana/alerts.yaml").read_text(encoding="utf-8"))


def test_each_alert_has_a_section_to_link_to() -> None:
    kind, body = runbook.page()
    text = body.decode()
    assert kind.startswith("text/html")
    assert ALERTS
    for name in ALERTS:
        assert f'<h2 id="{name.lower()}">{name}</h2>' in text
    assert "<b>Means.</b>" in text and "<code>--resume</code>" in text
    assert "**" not in text and "`" not in text and "](" not in text


def test_what_is_not_markdown_is_shown_as_it_is() -> None:
    assert runbook._block("a <b> & [link](x.md)") == "<p>a &lt;b&gt; &amp; link</p>"
    assert runbook._block("    curl <x>") == "<pre>    curl &lt;x&gt;</pre>"


def test_a_process_serves_it_beside_its_metrics() -> None:
    port = http.serve(http.registry("learner"), host="127.0.0.1", port=0, healthy=lambda: "")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/runbook", timeout=10) as answer:
        assert b'<h2 id="roleabsent">' in answer.read()
