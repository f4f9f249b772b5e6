"""`headrace units kubernetes`: three releases' schemas take it, and what it says is true."""

import json
import math
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from torch.distributed.run import get_args_parser

from grafana.generate.registries import all_metrics
from headrace.launch import cli
from tests.grafana.test_rules import promtool
from tests.grafana.test_types import TSC, install
from tests.needs import missing

# The first that a Job ends well in by one learner's success, one between, and the newest known.
RELEASES = ("1.31.0", "1.34.0", "1.37.0")
CRDS = {
    "monitor": ("IPodMonitor", "prometheus-operator", "monitoring.coreos.com/v1", "6.0.0"),
    "scale": ("IScaledObject", "keda", "keda.sh/v1alpha1", "0.4.2"),
}
SITES = {
    "one-machine": (),
    "ranks": ("--nodes", "2", "--ranks", "2", "--set", "learner.device=cuda"),
    "two-learners": ("--learners", "2", "--ranks", "2", "--set", "pacing.batch_unrolls=4"),
    "named": ("--image", f"a.lan:5000/b/c:1@sha256:{'0f' * 32}", "--namespace", "rl"),
}
every_site = pytest.mark.parametrize("site", SITES)


def rendered(out: Path, *more: str) -> dict[str, list[dict[str, Any]]]:
    """The objects of each file, by its name."""
    assert cli.main(["units", "kubernetes", "--run", "cartpole", "--out", str(out), *more]) == 0
    files = (path for path in (out / "base").iterdir() if path.stem != "kustomization")
    return {path.stem: list(yaml.safe_load_all(path.read_text())) for path in files}


def pods(objects: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The pod templates, by whose they are."""
    found = {one["metadata"]["name"]: one["spec"] for one in objects if "template" in one["spec"]}
    return {
        name.removeprefix("headrace-"): spec["template"]["spec"] for name, spec in found.items()
    }


def workloads(out: Path, *more: str) -> dict[str, dict[str, Any]]:
    objects = rendered(out, *more)["headrace"]
    return pods([one for one in objects if "spec" in one])


def container(pod: dict[str, Any]) -> dict[str, Any]:
    (only,) = pod["containers"]
    found: dict[str, Any] = only
    return found


@pytest.mark.processes
@every_site
def test_the_schemas_of_three_releases_take_it(site: str, tmp_path: Path) -> None:
    """PyPI's kubernetes-validate carries them; strict: no field that they do not know."""
    probe = [sys.executable, "-c", "import kubernetes_validate"]
    if subprocess.run(probe, capture_output=True).returncode:
        missing("kubernetes-validate is not installed: pip install kubernetes-validate")
    rendered(tmp_path, *SITES[site], "--storage", "nfs.fast")
    files = [str(tmp_path / "base" / name) for name in ("headrace.yaml", "storage.yaml")]
    releases = [word for release in RELEASES for word in ("-k", release)]
    done = subprocess.run(
        [sys.executable, "-m", "kubernetes_validate", "--strict", *releases, *files],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (done.stdout + done.stderr).count(" passed for resource ") == 13 * len(RELEASES)


@pytest.mark.processes
def test_the_types_of_the_operators_take_the_rest(tmp_path: Path) -> None:
    """A literal's unknown keys are errors, so this is as strict as the schemas."""
    found = rendered(tmp_path / "k8s", "--ranks", "2")
    packages = [f"@kubernetes-models/{name}@{version}" for _, name, _, version in CRDS.values()]
    install(tmp_path, [*packages, "typescript@5.9.3"])
    lines = []
    for file, (kind, package, group, _) in CRDS.items():
        (one,) = found[file]
        lines.append(f'import type {{{kind}}} from "@kubernetes-models/{package}/{group}";')
        lines.append(f"export const {file}: {kind} = {json.dumps(one)};")
    (tmp_path / "dashboards.ts").write_text("\n".join(lines))
    done = subprocess.run(
        ["node_modules/.bin/tsc", *TSC], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.processes
def test_checkov_finds_nothing(tmp_path: Path) -> None:
    """In an environment of its own: it pins what we use otherwise."""
    own = Path(sys.prefix, "checkov", "bin", "checkov")
    checkov = str(own) if own.exists() else shutil.which("checkov")
    if checkov is None:
        missing("checkov is not installed: python -m venv .venv/checkov, and pip install it there")
    rendered(tmp_path, *SITES["named"], "--storage", "nfs.fast")
    done = subprocess.run(
        [str(checkov), "--framework", "kubernetes", "-d", str(tmp_path), "--output", "json"],
        capture_output=True,
        text=True,
    )
    report = json.loads(done.stdout)
    assert [one["check_id"] for one in report["results"]["failed_checks"]] == []
    assert report["summary"]["passed"] > 300


@every_site
def test_the_pods_commands_are_true(site: str, tmp_path: Path) -> None:
    found = {}
    for name, pod in workloads(tmp_path, *SITES[site]).items():
        args = container(pod)["args"]
        if "command" in container(pod):
            assert container(pod)["command"] == ["python", "-m", "headrace.launch.torchrun"]
            args = [word.replace("$(JOB_COMPLETION_INDEX)", "1") for word in args]
            given = get_args_parser().parse_args(args)
            assert (given.module, given.training_script) == (True, "headrace.launch.learner")
            assert given.node_rank == 1
            args = ["learner", *given.training_script_args]
        found[name] = cli.parser().parse_args(args).command
    roles = {"broker": "broker", "learner": "learner", "node": "node", "evaluator": "evaluate"}
    assert found == roles


@every_site
def test_whatever_a_pod_names_is_there(site: str, tmp_path: Path) -> None:
    """Folders in its words are mounts, mounts are volumes, claims are stored, probes have ports."""
    found = rendered(tmp_path, *SITES[site])
    claims = {one["metadata"]["name"] for one in found["storage"]}
    for name, pod in pods([one for one in found["headrace"] if "spec" in one]).items():
        main = container(pod)
        mounts = {one["mountPath"]: one["name"] for one in main["volumeMounts"]}
        volumes = {one["name"]: one for one in pod["volumes"]}
        assert set(mounts.values()) == set(volumes), name
        named = {
            f"/{path}" for word in main["args"] for path in re.findall(r"(?:^|=)/([\w-]+)", word)
        }
        assert named <= set(mounts), name
        for volume in volumes.values():
            claim = volume.get("persistentVolumeClaim", {}).get("claimName")
            assert claim is None or claim in claims
        ports = {one["name"] for one in main["ports"]}
        assert {main[f"{kind}Probe"]["httpGet"]["port"] for kind in PROBES} <= ports
        assert all(len(port) <= 15 for port in ports)


PROBES = ("startup", "readiness", "liveness")


@every_site
def test_selectors_find_pods_and_nothing_is_in_another_namespace(site: str, tmp_path: Path) -> None:
    found = rendered(tmp_path, *SITES[site])
    everything = [one for objects in found.values() for one in objects]
    namespace = "rl" if site == "named" else "headrace"
    assert {one["metadata"]["namespace"] for one in everything} == {namespace}
    labels = [one["spec"]["template"]["metadata"]["labels"] for one in everything if is_pod(one)]
    text = json.dumps(everything)
    selectors = [
        json.loads(one) for one in re.findall(r'"(?:matchLabels|selector)": ({"app[^}]*})', text)
    ]
    assert len(selectors) > 12
    for selector in selectors:
        assert any(selector.items() <= own.items() for own in labels), selector


def is_pod(one: dict[str, Any]) -> bool:
    return "template" in one.get("spec", {})


def test_the_metrics_of_all_ranks_may_be_read_and_no_more(tmp_path: Path) -> None:
    ranks = ("--ranks", "95", "--set", "pacing.batch_unrolls=95")
    found = rendered(tmp_path, *ranks)["headrace"]
    learner = pods([one for one in found if is_pod(one)])["learner"]
    last = max(
        port["containerPort"] for port in container(learner)["ports"] if "metrics" in port["name"]
    )
    (policy,) = (
        one
        for one in found
        if one["kind"] == "NetworkPolicy" and one["metadata"]["name"] == "headrace"
    )
    assert policy["spec"]["ingress"][0]["ports"] == [
        {"protocol": "TCP", "port": 9100, "endPort": last}
    ]
    assert last == 9110 + 94


def test_a_pod_has_longer_to_end_than_it_drains(tmp_path: Path) -> None:
    found = workloads(tmp_path, "--set", "actor.drain_s=40")
    grace = {name: pod["terminationGracePeriodSeconds"] for name, pod in found.items()}
    _, stays = container(found["broker"])["lifecycle"]["preStop"]["exec"]["command"]
    assert grace["broker"] > int(stays) > 40
    assert grace["learner"] > 45 + 30
    assert grace["node"] > 40


def test_a_pod_is_ended_for_a_hang_when_systemd_would(tmp_path: Path) -> None:
    sets = ("--set", "learner.rank_timeout_s=200", "--set", "actor.step_timeout_s=300")
    found = workloads(tmp_path, *sets)
    for name, least in {"broker": 30, "learner": 200, "node": 300, "evaluator": 300}.items():
        probe = container(found[name])["livenessProbe"]
        assert probe["httpGet"]["path"] == "/livez"
        stuck_s = probe["periodSeconds"] * probe["failureThreshold"]
        assert least <= stuck_s <= least + 60
        assert container(found[name])["readinessProbe"]["httpGet"]["path"] == "/healthz"


def test_whoever_counts_unrolls_writes_a_ledger(tmp_path: Path) -> None:
    """Else headrace audit can say nothing."""
    writes = {n: "--ledger=/ledger" in container(p)["args"] for n, p in workloads(tmp_path).items()}
    assert writes == {"broker": True, "learner": True, "node": True, "evaluator": False}


def test_no_budget_holds_a_single_pod(tmp_path: Path) -> None:
    """It would keep its machine from ever being drained."""
    found = rendered(tmp_path, *SITES["two-learners"])["headrace"]
    budgets = [one for one in found if one["kind"] == "PodDisruptionBudget"]
    assert [one["metadata"]["name"] for one in budgets] == ["headrace-node"]
    assert "minAvailable" not in budgets[0]["spec"]
    (nodes,) = (one for one in found if is_pod(one) and one["metadata"]["name"] == "headrace-node")
    share = int(budgets[0]["spec"]["maxUnavailable"].removesuffix("%")) / 100
    assert math.ceil(share * nodes["spec"]["replicas"]) >= 1


def test_a_learner_that_was_asked_to_stop_is_not_done(tmp_path: Path) -> None:
    """tests/system/roles/test_torchrun.py runs this command."""
    (job,) = (one for one in rendered(tmp_path)["headrace"] if one["kind"] == "Job")
    main = container(job["spec"]["template"]["spec"])
    env = {one["name"]: one.get("value") for one in main["env"]}
    rules = job["spec"]["podFailurePolicy"]["rules"]
    ignored = [
        r["onExitCodes"]["values"] for r in rules if "onExitCodes" in r and r["action"] == "Ignore"
    ]
    assert [[int(str(env["STOPPED_STATUS"]))]] == ignored
    assert "--resume" in main["args"]


@pytest.mark.processes
def test_the_scaler_asks_for_what_there_is(tmp_path: Path) -> None:
    (scaler,) = rendered(tmp_path)["scale"]
    (trigger,) = scaler["spec"]["triggers"]
    query = trigger["metadata"]["query"]
    known = {name for one in all_metrics() for name in one.series}
    assert set(re.findall(r"headrace_\w+", query)) <= known
    rules = {"groups": [{"name": "scale", "rules": [{"record": "a:b", "expr": query}]}]}
    (tmp_path / "rules.yaml").write_text(json.dumps(rules))
    (tmp_path / "test.yaml").write_text(json.dumps(scaled(query)))
    done = promtool("test", "rules", str(tmp_path / "test.yaml"))
    assert done.returncode == 0, done.stdout + done.stderr


def scaled(query: str) -> dict[str, Any]:
    """Four samplers that wait for credit a quarter of their time: three quarters are busy."""
    waits = 'headrace_samplers_wait_seconds_total{job="cartpole",phase="credit"}'
    series = [
        {"series": waits, "values": "0+60x20"},  # each minute, of 4 * 60 s
        {"series": 'headrace_broker_sessions{job="cartpole",role="actor"}', "values": "4x20"},
    ]
    asked = {"expr": query, "eval_time": "15m", "exp_samples": [{"labels": "{}", "value": 0.75}]}
    tests = [{"interval": "1m", "input_series": series, "promql_expr_test": [asked]}]
    return {"rule_files": ["rules.yaml"], "tests": tests}


@every_site
def test_the_example_overlay_changes_what_is_there(site: str, tmp_path: Path) -> None:
    found = rendered(tmp_path, *SITES[site])
    base = yaml.safe_load((tmp_path / "base/kustomization.yaml").read_text())
    offered = (tmp_path / "base/kustomization.yaml").read_text()
    assert {Path(name).stem for name in re.findall(r"- (\S+)", offered)} == set(found)
    assert base["resources"] == ["storage.yaml", "headrace.yaml"]
    folder = tmp_path / "overlays/example"
    overlay = yaml.safe_load((folder / "kustomization.yaml").read_text())
    assert [(folder / name).resolve() for name in overlay["resources"]] == [tmp_path / "base"]
    (image,), (replicas,) = overlay["images"], overlay["replicas"]
    everything = found["headrace"]
    for pod in pods([one for one in everything if is_pod(one)]).values():
        assert re.fullmatch(f"{re.escape(image['name'])}[:@].*", container(pod)["image"])
    (nodes,) = (
        one
        for one in everything
        if one["kind"] == "Deployment"
        and "replicas" in one["spec"]
        and one["metadata"]["name"] == replicas["name"]
    )
    assert replicas["count"] > nodes["spec"]["replicas"]


@pytest.mark.processes
def test_kustomize_takes_base_and_overlay(tmp_path: Path) -> None:
    """Debian's kubectl is older than what it would read."""
    said = subprocess.run(["sh", "-c", "kubectl version --client"], capture_output=True, text=True)
    if "Kustomize Version: v5" not in said.stdout:
        pytest.skip("kubectl with kustomize 5 is not here: it would read base and overlay")
    found = rendered(tmp_path)
    for folder, namespace, image in (
        ("base", "headrace", None),
        ("overlays/example", "headrace-example", "registry.example/headrace"),
    ):
        words = ["kubectl", "kustomize", str(tmp_path / folder)]
        made = subprocess.run(words, capture_output=True, text=True, check=True).stdout
        objects = list(yaml.safe_load_all(made))
        assert len(objects) == len(found["headrace"]) + len(found["storage"])
        assert {one["metadata"]["namespace"] for one in objects} == {namespace}
        images = {
            container(pod)["image"].rpartition(":")[0]
            for pod in pods([one for one in objects if is_pod(one)]).values()
        }
        assert images == {image or "headrace"}


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--image", "Head race"], "--image 'Head race' cannot be the name of an image"),
        (["--image", "a:b:c"], "--image 'a:b:c'"),
        (["--image", ""], "--image ''"),
        (["--namespace", "My_Space"], "--namespace 'My_Space' cannot be the name of a namespace"),
        (["--namespace", "a" * 64], "--namespace 'aaa"),
        (["--storage", "fast\n  evil: 1"], "cannot be the name of a storage class"),
        (["--storage", "-fast"], "--storage '-fast'"),
    ],
)
def test_a_wrong_name_is_one_line_and_status_2(
    words: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    option, word = words
    given = ["units", "kubernetes", "--run", "cartpole", f"{option}={word}"]
    assert cli.main(given) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert line in said.err


@pytest.mark.parametrize("image", ["headrace", "a.lan:5000/b/c_d:1.2-x", f"b/c@sha256:{'a' * 64}"])
def test_images_that_are_taken(image: str, tmp_path: Path) -> None:
    assert container(workloads(tmp_path, "--image", image)["broker"])["image"] == image
