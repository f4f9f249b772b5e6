"""docs/deploy/slurm.md on a live Slurm: runs that end, share a head, are stopped and come back."""

import json
from functools import partial

from headrace.launch import cli
from tests.system.conftest import RUN, until
from tests.system.harness.figures import LONG
from tests.system.platforms.cluster import Cluster, cluster
from tests.trainings import trained

__all__ = ["cluster"]

FOR_EVER = 1_000_000_000
STEPS = 3000
LONG_S = 240.0  # a run, or a job's credential and its start, on a busy machine
OVER = ("COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", "PREEMPTED", "NODE_FAIL")


class Run:
    """A folder of `headrace units slurm`, and its jobs."""

    def __init__(self, cluster: Cluster, name: str, *, steps: int) -> None:
        self.cluster = cluster
        self.folder = cluster.folder / name
        self.file = self.folder / f"{name}.toml"
        self.out = self.folder / "runs" / name
        self.jobs: list[str] = []
        given = cluster.folder / f"given-{name}.toml"
        given.write_text(RUN.replace('name = "small"', f'name = "{name}"'))
        words = ["--run", str(given), "--set", f"stop.steps={steps}", "--out", str(self.folder)]
        assert not cli.main(["units", "slurm", *words, "--bin", str(cluster.folder / "bin")])
        assert not cli.main(["keygen", str(self.folder / "keys")])

    def submit(self, script: str, *options: str) -> str:
        """Its number."""
        job = self.cluster.run("sbatch", "--parsable", *options, script, there=self.folder)
        assert job.isdigit(), job
        self.jobs.append(job)
        return job

    def log(self, job: str) -> str:
        return "\n".join(path.read_text() for path in self.folder.glob(f"*-{job}.log"))

    def says(self, job: str, **what: str) -> bool:
        """Says whether this is true of a job now; one that is over never changes."""
        found = self.cluster.job(job)
        if all(found[key] == value for key, value in what.items()):
            return True
        assert found["JobState"] not in OVER, f"{found}\n{self.log(job)}"
        return False

    def becomes(self, job: str, **what: str) -> None:
        until(partial(self.says, job, **what), f"{what} of {job}", timeout_s=LONG_S)

    def trains(self, more: int = 20) -> None:
        goal = trained(self.out / "ledger") + more
        until(lambda: trained(self.out / "ledger") >= goal, f"{goal} trained", timeout_s=LONG_S)

    def is_complete(self) -> None:
        """All jobs end with 0, at the goal, and the books are whole."""
        for job in self.jobs:
            self.becomes(job, JobState="COMPLETED", ExitCode="0:0")
        assert json.loads((self.out / "learner.json").read_text())["stop_reason"] == "steps"
        journals = f"mkdir journals; cp runs/*/ledger/* ledgers/* journals; {self.audit}"
        said = self.cluster.run("sh", "-c", journals, there=self.folder)
        assert said.endswith("\nexact"), said

    audit = "headrace audit journals"


def test_two_runs_share_a_head_whose_name_is_its_loopback_and_reach_their_goals(
    cluster: Cluster,
) -> None:
    cluster.hosts("n1", "127.0.1.1 n1")  # as Debian's installer writes it
    runs = [Run(cluster, name, steps=STEPS) for name in ("east", "west")]
    refused = runs[0].submit("learner.sbatch", "--nodelist=n1")
    runs[0].becomes(refused, JobState="FAILED", ExitCode="2:0")
    runs[0].jobs.remove(refused)
    (line,) = runs[0].log(refused).splitlines()
    assert line.startswith("the address of n1 is '127.0.1.1' here, which no other node reaches")
    assert line.endswith("submit with HEADRACE_ADDRESS=the address of n1")
    for run in runs:
        where = "--export=ALL,HEADRACE_ADDRESS=10.77.0.11"
        run.submit("learner.sbatch", "--nodelist=n1", where)
    for run in runs:
        until((run.folder / "broker.address").exists, f"a broker: {run.log(run.jobs[0])}")
    for run in runs:
        run.submit("samplers.sbatch")
    for run in runs:
        run.is_complete()


def test_what_is_preempted_or_out_of_time_comes_back(cluster: Cluster) -> None:
    """USR1 by scancel stands for the time limit, which is minutes; `make soak` waits for it."""
    run = Run(cluster, "cartpole", steps=FOR_EVER)
    limit = ("--time=3", "--signal=B:USR1@60") if LONG else ()
    learner = run.submit("learner.sbatch", "--nodelist=n1", *limit)
    samplers = run.submit("samplers.sbatch", "--nodelist=n3", "--partition=cheap")
    run.trains()
    urgent = ("--partition=urgent", "--nodelist=n3", "--exclusive", "--wrap=true")
    cluster.run("sbatch", "--output=/dev/null", *urgent)
    run.becomes(samplers, Restarts="1", JobState="RUNNING")
    run.trains()
    if not LONG:
        cluster.run("scancel", "--batch", "--signal=USR1", learner)
    run.becomes(learner, Restarts="1", JobState="PENDING")
    assert list((run.out / "checkpoints").glob("[0-9]" * 12)), run.log(learner)
    steps = json.loads((run.out / "learner.json").read_text())["trained_steps"]
    text = run.file.read_text().replace(str(FOR_EVER), str(steps + STEPS))
    run.file.write_text(text)
    # It goes on elsewhere, and the samplers follow.
    cluster.run("scontrol", "update", f"job={learner}", "ReqNodeList=n2")
    run.is_complete()
    assert "continues with another stop.steps" in run.log(learner)
    assert cluster.job(learner)["NodeList"] == "n2"
