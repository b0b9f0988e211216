"""Manifests of a job for Kubernetes: a PyTorchJob, and a TrainJob with its TrainingRuntime.

Kubeflow's operators say to each pod where the first one is and which it is; torchrun in a pod
starts its ranks. Schemas: kubeflow.org/v1 and trainer.kubeflow.org/v1alpha1."""

from __future__ import annotations

import json
from pathlib import PurePath
from typing import Any

from shardlang.disk.overwrite_guard import JOB_MARK
from shardlang.errors import RunError
from shardlang.frozen.records import dataclass
from shardlang.launch.job import Job

PYTORCHJOB, TRAINJOB = "pytorchjob.yaml", "trainjob.yaml"
# The kinds of resource, each with the manifest that needs it, newest first.
RESOURCES = {"trainjobs.trainer.kubeflow.org": TRAINJOB, "pytorchjobs.kubeflow.org": PYTORCHJOB}
# Where ranks of a pod share memory. A pod has 64 MB of it by itself, which a sum outgrows.
_SHARED = "/dev/shm"


@dataclass(frozen=True)
class Pod:
    """Where pods come from: their image, and volume claims by name, each at a path."""

    image: str
    claims: tuple[tuple[str, PurePath], ...] = ()


def claim_of(text: str) -> tuple[str, PurePath]:
    """The claim and the path of `NAME:/PATH`. RunError where it is none."""
    name, colon, path = text.partition(":")
    if not (name and colon and path.startswith("/")):
        raise RunError("SH520", f"`{text}` is no claim and path", help="--claim data:/mnt/data")
    return name, PurePath(path)


def files(job: Job, pod: Pod) -> dict[str, str]:
    """The manifests, by name. A TrainJob has one number of hosts. RunError where the program would
    be on no volume."""
    for what, path in (("the program", job.program), ("what its paths are relative to", job.base)):
        if pod.claims and not any(path.is_relative_to(mounted) for _, mounted in pod.claims):
            at = " and ".join(str(mounted) for _, mounted in pod.claims)
            raise RunError(
                "SH520", f"{what} is in {path} on the hosts, and pods see {at}",
                help=f"-o {pod.claims[0][1]}/.., or --there and --base-there, the paths that pods see",
            )  # fmt: skip
    made = {PYTORCHJOB: _text(job, _pytorch_job(job, pod))}
    if job.least == job.most:
        made[TRAINJOB] = _text(job, _runtime(job, pod), _train_job(job, pod))
    return made


def _text(job: Job, *objects: dict[str, Any]) -> str:
    import yaml

    # Without aliases: what stands twice is written twice, for people to change.
    apart = json.loads(json.dumps(objects))
    head = f"# {JOB_MARK} `{job.name}`: {job.ranks} ranks on {job.nodes} hosts.\n"
    return head + "---\n".join(yaml.safe_dump(made, sort_keys=False, width=1 << 30) for made in apart)


def _container(job: Job, pod: Pod, name: str, command: list[str]) -> dict[str, Any]:
    mounts = [("shared-memory", _SHARED), *((claim, str(path)) for claim, path in pod.claims)]
    made: dict[str, Any] = {"name": name, "image": pod.image, "command": command}
    made["env"] = [{"name": key, "value": value} for key, value in [*job.interfaces, ("PYTHONUNBUFFERED", "1")]]
    if job.gpus:
        made["resources"] = _resources(job)
    made["volumeMounts"] = [{"name": claim, "mountPath": path} for claim, path in mounts]
    return made


def _resources(job: Job) -> dict[str, Any]:
    return {"limits": {"nvidia.com/gpu": job.each}}


def _volumes(pod: Pod) -> list[dict[str, Any]]:
    shared: dict[str, Any] = {"name": "shared-memory", "emptyDir": {"medium": "Memory"}}
    return [shared, *({"name": name, "persistentVolumeClaim": {"claimName": name}} for name, _ in pod.claims)]


def _pytorch_job(job: Job, pod: Pod) -> dict[str, Any]:
    fixed = job.least == job.most
    command = ["torchrun"]
    if fixed:
        command += [f"--nnodes={job.most}", f"--nproc-per-node={job.each}", "--node-rank=$(RANK)"]
        command += ["--master-addr=$(MASTER_ADDR)", "--master-port=$(MASTER_PORT)"]
    template = {
        "spec": {"containers": [_container(job, pod, "pytorch", command + job.command)], "volumes": _volumes(pod)}
    }
    replica = {"restartPolicy": "OnFailure", "template": template}
    spec: dict[str, Any] = {"runPolicy": {"backoffLimit": job.restarts}}
    if fixed:
        spec["nprocPerNode"] = str(job.each)
        spec["pytorchReplicaSpecs"] = {"Master": {"replicas": 1, **replica}}
        if job.most > 1:
            spec["pytorchReplicaSpecs"]["Worker"] = {"replicas": job.most - 1, **replica}
    else:
        spec["elasticPolicy"] = {
            "minReplicas": job.least, "maxReplicas": job.most, "nProcPerNode": job.each, "rdzvBackend": "c10d",
            "maxRestarts": job.restarts,
        }  # fmt: skip
        spec["pytorchReplicaSpecs"] = {"Worker": {"replicas": job.most, **replica}}
    return {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": job.name}, "spec": spec}


def _runtime(job: Job, pod: Pod) -> dict[str, Any]:
    pods = {"containers": [_container(job, pod, "node", ["torchrun", *job.command])], "volumes": _volumes(pod)}
    node = {
        "name": "node",
        "template": {
            "metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}},
            "spec": {"backoffLimit": job.restarts, "template": {"spec": {"restartPolicy": "OnFailure", **pods}}},
        },
    }
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainingRuntime", "metadata": {"name": job.name},
        "spec": {
            "mlPolicy": {"numNodes": job.most, "torch": {}}, "template": {"spec": {"replicatedJobs": [node]}},
        },
    }  # fmt: skip


def _train_job(job: Job, pod: Pod) -> dict[str, Any]:
    trainer: dict[str, Any] = {"numNodes": job.most, "numProcPerNode": job.each}
    if job.gpus:
        trainer["resourcesPerNode"] = _resources(job)
    reference = {"apiGroup": "trainer.kubeflow.org", "kind": "TrainingRuntime", "name": job.name}
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob", "metadata": {"name": job.name},
        "spec": {"runtimeRef": reference, "trainer": trainer},
    }  # fmt: skip
