"""The values of the words in the templates for Kubernetes: those that other kinds do not have."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.broker.release import release
from headrace.broker.security import keys
from headrace.launch.config import run_file
from headrace.launch.deploy.broker_address import RANK_PORT

# What Kubernetes takes: a label of a DNS name, such names, and an image's reference.
_LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_NAMESPACE = re.compile(_LABEL)
_STORAGE = re.compile(rf"(?=.{{1,253}}\Z){_LABEL}(\.{_LABEL})*")
_PART = r"[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*"
_IMAGE = re.compile(
    rf"([A-Za-z0-9][A-Za-z0-9.-]*(:\d+)?/)?{_PART}(/{_PART})*"
    r"(:\w[\w.-]{0,127})?(@sha256:[0-9a-f]{64})?"
)
_PROBE_S = 10  # between two looks at /livez
_GROWTH = 4  # the scaler's example may have so many times the nodes that were asked for


@dataclass(frozen=True, slots=True)
class Cluster:
    """Holds what the command line says of a cluster, checked; None = the default."""

    image: str | None = None
    namespace: str | None = None
    storage: str | None = None  # the class of its volumes; None = the cluster's default

    def __post_init__(self) -> None:
        for option, word, form, such in (
            ("--image", self.image, _IMAGE, "an image, such as registry.lan/headrace:1"),
            ("--namespace", self.namespace, _NAMESPACE, "a namespace: a-z, 0-9 and -, at most 63"),
            ("--storage", self.storage, _STORAGE, "a storage class: a-z, 0-9, - and ."),
        ):
            if word is not None and not form.fullmatch(word):
                raise run_file.ConfigError(f"{option} {word!r:.80} cannot be the name of {such}")

    def given(self) -> list[str]:
        """Returns the options that were given."""
        return [f"--{name}" for name in self.__slots__ if getattr(self, name) is not None]

    def words(self, run: run_file.Run, *, ranks: int, nodes: int) -> dict[str, object]:
        """Returns the words of a run with so many ranks on a machine, and so many nodes."""
        gpu = run.learner.device == "cuda"
        ports = {"metrics" + f"-{rank}" * (rank > 0): RANK_PORT + rank for rank in range(ranks)}
        image = self.image or f"headrace:{release()}"
        return {
            "image": image,
            "image_name": re.sub(r"(:[^:/]*)?(@.*)?$", "", image),
            "release": release(),
            "namespace": self.namespace or "headrace",
            "storage_class": f"\n  storageClassName: {self.storage}" if self.storage else "",
            "run_text": "\n".join(
                f"    {line}".rstrip() for line in run_file.effective(run).splitlines()
            ),
            "most_nodes": _GROWTH * nodes,
            "learner_ports": "\n".join(
                f"            - {{name: {name}, containerPort: {port}}}"
                for name, port in ports.items()
            ),
            "last_port": max(ports.values()),
            "monitor_endpoints": "\n".join(_endpoint(name, run.run.name) for name in ports),
            "gpu_words": "" if gpu else ', and "nvidia.com/gpu" for a learner on GPUs',
            "gpu_limit": f', nvidia.com/gpu: "{ranks}"' if gpu else "",
            "pod_security": "{runAsNonRoot: true, runAsUser: 10001, runAsGroup: 10001,"
            " fsGroup: 10001, seccompProfile: {type: RuntimeDefault}}",
            "container_security": "{allowPrivilegeEscalation: false, readOnlyRootFilesystem: true,"
            " capabilities: {drop: [ALL]}}",
        }


def probes(watchdog_s: int) -> int:
    """Returns how often /livez may fail before a pod has been stuck for as long."""
    return math.ceil(watchdog_s / _PROBE_S)


def authorised(shown: Sequence[str]) -> str:
    """Returns the items of the broker's volume of public keys."""
    return "\n".join(
        f"              - {{key: {name}, path: {keys.AUTHORISED}/{name}}}" for name in shown
    )


def _endpoint(port: str, run: str) -> str:
    """Returns one port that Prometheus reads; a pod without that port has none."""
    return f"""\
    - port: {port}
      # A metric's own label "role" (whose sessions) wins over the pod's.
      honorLabels: true
      relabelings:
        - {{targetLabel: job, replacement: {run}}}
        - sourceLabels: [__meta_kubernetes_pod_label_app_kubernetes_io_component]
          targetLabel: role"""
