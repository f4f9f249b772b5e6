"""docs/deploy/slurm.md on a live Slurm: runs that end, share a head, are stopped and come back."""

import json
import sys
from functools import partial

from headrace.launch import cli
from tests.system.conftest import RUN, until
from tests.system.platforms.cluster import Cluster, cluster
from tests.trainings import trained

__all__ = ["cluster"]

FOR_EVER = 1_000_000_000
STEPS = 3000
WHERE = "--export=ALL,HEADRACE_ADDRESS=10.77.0.11"  # of n1
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

    def kill(self, name: str) -> None:
        """Kills the processes of a step of the first job with SIGKILL."""
        listed = ("squeue", "--noheader", "--steps", "--jobs", self.jobs[0], "--format", "%i %j")
        lines = self.cluster.run(*listed).splitlines()
        (step,) = (line.split()[0] for line in lines if line.split()[1] == name)
        assert not self.cluster.run("scancel", "--signal=KILL", step)

    def becomes(self, job: str, **what: str) -> None:
        until(partial(self.says, job, **what), f"{what} of {job}", timeout_s=LONG_S)

    def trains(self, more: int = 20) -> None:
        goal = trained(self.out / "ledger") + more
        until(lambda: trained(self.out / "ledger") >= goal, f"{goal} trained", timeout_s=LONG_S)

    def comes_back(self, job: str, times: int) -> None:
        """The learner's job is in the queue again; its goal is near from now on."""
        self.becomes(job, Restarts=str(times), JobState="PENDING")
        assert list((self.out / "checkpoints").glob("[0-9]" * 12)), self.log(job)
        steps = json.loads((self.out / "learner.json").read_text())["trained_steps"]
        text = self.file.read_text().replace(str(FOR_EVER), str(steps + STEPS))
        self.file.write_text(text)

    def is_complete(self) -> None:
        """All jobs end with 0, at the goal, and the books are whole."""
        for job in self.jobs:
            self.becomes(job, JobState="COMPLETED", ExitCode="0:0")
        assert json.loads((self.out / "learner.json").read_text())["stop_reason"] == "steps"
        journals = f"mkdir journals; cp runs/*/ledger/* ledgers/* journals; {self.audit}"
        said = self.cluster.run("sh", "-c", journals, there=self.folder)
        assert said.endswith("\nexact"), said

    audit = "headrace audit journals"


def test_runs_share_a_head_one_loses_its_broker_and_all_reach_their_goals(cluster: Cluster) -> None:
    runs = east, west = [Run(cluster, "east", steps=STEPS), Run(cluster, "west", steps=FOR_EVER)]
    for run in runs:
        run.submit("learner.sbatch", "--nodelist=n1", WHERE)
    for run in runs:
        until((run.folder / "broker.address").exists, f"a broker: {run.log(run.jobs[0])}")
    for run in runs:
        run.submit("samplers.sbatch")
    west.trains()
    west.kill("broker")
    west.comes_back(west.jobs[0], 1)
    for run in runs:
        run.is_complete()
    assert "continues with another stop.steps" in west.log(west.jobs[0])
    assert cluster.job(east.jobs[0])["Restarts"] == "0"


def test_jobs_that_cannot_work_say_why_and_fail(cluster: Cluster) -> None:
    cluster.hosts("n1", "127.0.1.1 n1")  # as Debian's installer writes it
    run, keyless = Run(cluster, "east", steps=STEPS), Run(cluster, "west", steps=STEPS)
    refused = run.submit("learner.sbatch", "--nodelist=n1")
    listen = "http.server --bind 10.77.0.11 $((10000 + (SLURM_JOB_ID + 1) % 500 * 40))"
    words = ("--output=other-%j.log", f"--wrap=exec {sys.executable} -um {listen}")
    other = run.submit("--nodelist=n1", *words)
    until(lambda: "Serving" in run.log(other), "a taken port")
    taken = run.submit("learner.sbatch", "--nodelist=n1", WHERE)
    assert int(taken) == int(other) + 1
    (keyless.folder / "keys/actor.key").unlink()
    (keyless.folder / "broker.address").write_text("tcp://10.77.0.11:9\n")
    samplers = keyless.submit("samplers.sbatch", "--nodelist=n3")
    for job in (refused, taken, samplers):
        run.becomes(job, JobState="FAILED", ExitCode="2:0")
    assert not (run.folder / "broker.address").exists()
    (line,) = run.log(refused).splitlines()
    assert line.startswith("the address of n1 is '127.0.1.1' here, which no other node reaches")
    assert line.endswith("submit with HEADRACE_ADDRESS=the address of n1")
    assert "address already in use" in run.log(taken)
    assert keyless.log(samplers).count("actor.key") == 1


def test_what_is_preempted_or_out_of_time_comes_back(cluster: Cluster) -> None:
    run = Run(cluster, "cartpole", steps=FOR_EVER)
    learner = run.submit("learner.sbatch", "--nodelist=n1", "--partition=cheap")
    samplers = run.submit("samplers.sbatch", "--nodelist=n3", "--partition=cheap")
    run.trains()
    urgent = ("--partition=urgent", "--nodelist=n1,n3", "--exclusive", "--wrap=true")
    cluster.run("sbatch", "--output=/dev/null", *urgent)
    for job in (learner, samplers):
        run.becomes(job, Restarts="1", JobState="RUNNING")
    run.trains()
    # Slurm looks each 30 s whose time is up within those 120 s of the script.
    cluster.run("scontrol", "update", f"job={learner}", "EndTime=now+150seconds")
    run.comes_back(learner, 2)
    # It goes on elsewhere, and the samplers follow.
    cluster.run("scontrol", "update", f"job={learner}", "ReqNodeList=n2", "TimeLimit=UNLIMITED")
    run.is_complete()
    assert "continues with another stop.steps" in run.log(learner)
    assert cluster.job(learner)["NodeList"] == "n2"
