"""Manifests against the published schemas of their kinds, read strictly: a key that the schema lacks is an error."""

from __future__ import annotations

import copy
import gzip
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator
from jsonschema.protocols import Validator

from shardlang.errors import RunError
from shardlang.launch.job import Job
from shardlang.launch.kubernetes import PYTORCHJOB, TRAINJOB, Pod, claim_of, files

CRDS = Path(__file__).parent / "crds"
META = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}}
NAMED = {"type": "object", "properties": {"name": {"type": "string", "pattern": "^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$"}}}
POD = Pod("team/shard:1", (("data", PurePath("/mnt/data")),))


def job(**changed: Any) -> Job:
    given: dict[str, Any] = dict(
        name="llama", program=PurePath("/mnt/data/job"), base=PurePath("/mnt/data/models"), ranks=16, least=2, most=2,
        resumes=True, device="cuda", interface="eth0",
    )  # fmt: skip
    return Job(**{**given, **changed})


class Once(yaml.SafeLoader):
    """Reads YAML; a key that comes twice in one mapping is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key) for key, _ in node.value]
        assert len(set(keys)) == len(keys), f"a key twice: {keys}"
        return super().construct_mapping(node, deep)


def strict(schema: Any) -> Any:
    """The schema of a kind in which no object takes keys that it does not list."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: strict(value) for key, value in schema.items()}
    if "properties" in schema and isinstance(schema["properties"], dict) and "type" in schema:
        made.setdefault("additionalProperties", bool(schema.get("x-kubernetes-preserve-unknown-fields")))
    if schema.get("x-kubernetes-int-or-string"):
        made = {"type": ["integer", "string"]}
    return made


def validators() -> dict[tuple[str, str], Validator]:
    """By apiVersion and kind. Each is made once: to check such a schema takes a second."""
    found: dict[tuple[str, str], Validator] = {}
    for path in CRDS.glob("*.yaml.gz"):
        given = yaml.load(gzip.decompress(path.read_bytes()), getattr(yaml, "CSafeLoader", yaml.SafeLoader))["spec"]
        for version in given["versions"]:
            schema = strict(version["schema"]["openAPIV3Schema"])
            schema["properties"]["metadata"] = {**NAMED, "additionalProperties": False, "required": ["name"]}
            Draft202012Validator.check_schema(schema)
            found[f"{given['group']}/{version['name']}", given["names"]["kind"]] = Draft202012Validator(schema)
    return found


@pytest.fixture(scope="module")
def kinds() -> dict[tuple[str, str], Validator]:
    return validators()


def objects(job: Job, pod: Pod = POD) -> list[dict[str, Any]]:
    return [each for text in files(job, pod).values() for each in yaml.load_all(text, Once)]


JOBS = [job(), job(least=2, most=4, ranks=32), job(most=1, least=1, ranks=8, device=None, interface="")]


@pytest.mark.parametrize("given", JOBS, ids=["fixed", "elastic", "one host"])
def test_manifests_pass_their_schemas(given: Job, kinds: dict[tuple[str, str], Validator]) -> None:
    found = objects(given)
    expected = ["PyTorchJob", "TrainingRuntime", "TrainJob"]
    assert [each["kind"] for each in found] == expected[: 3 if given.least == given.most else 1]
    for each in found:
        kinds[each["apiVersion"], each["kind"]].validate(each)


def mappings(given: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where there is an object whose keys the schema knows."""
    if isinstance(given, dict):
        # Keys of these are names that a person chooses.
        if path[-1:] not in (("labels",), ("limits",), ("pytorchReplicaSpecs",)):
            yield path
        for key, value in given.items():
            yield from mappings(value, (*path, key))
    if isinstance(given, list):
        for at, value in enumerate(given):
            yield from mappings(value, (*path, at))


@pytest.mark.parametrize("given", JOBS, ids=["fixed", "elastic", "one host"])
def test_a_misspelt_key_in_each_object_is_found(given: Job, kinds: dict[tuple[str, str], Validator]) -> None:
    count = 0
    for whole in objects(given):
        for path in mappings(whole):
            broken = copy.deepcopy(whole)
            at = broken
            for part in path:
                at = at[part]
            for key in list(at)[:1]:
                at[f"{key}x"] = at.pop(key)
                assert not kinds[whole["apiVersion"], whole["kind"]].is_valid(broken)
                count += 1
    assert count > 15


def test_pods_run_the_program_by_what_the_operator_tells_them() -> None:
    training, runtime, train = objects(job())
    replicas = training["spec"]["pytorchReplicaSpecs"]
    assert (replicas["Master"]["replicas"], replicas["Worker"]["replicas"]) == (1, 1)
    pod = replicas["Worker"]["template"]["spec"]["containers"][0]
    assert pod["command"] == [
        "torchrun", "--nnodes=2", "--nproc-per-node=8", "--node-rank=$(RANK)", "--master-addr=$(MASTER_ADDR)",
        "--master-port=$(MASTER_PORT)", "/mnt/data/job/main.py", "--base", "/mnt/data/models", "--log-dir",
        "/mnt/data/job/logs", "--resume", "--device", "cuda",
    ]  # fmt: skip
    assert pod["resources"]["limits"] == {"nvidia.com/gpu": 8}
    assert {"name": "GLOO_SOCKET_IFNAME", "value": "eth0"} in pod["env"]
    assert train["spec"]["trainer"]["numNodes"] == 2 and train["spec"]["runtimeRef"]["name"] == "llama"
    node = runtime["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    assert node["containers"][0]["command"][0] == "torchrun"
    assert set(files(job(), POD)) == {PYTORCHJOB, TRAINJOB}


@pytest.mark.parametrize("text", ["data", "data:", ":/mnt", "data:mnt"])
def test_a_claim_is_a_name_and_a_path(text: str) -> None:
    with pytest.raises(RunError, match="is no claim and path"):
        claim_of(text)


def test_a_program_that_pods_do_not_see_is_refused() -> None:
    with pytest.raises(RunError, match="the program is in /home/a on the hosts, and pods see /mnt/data"):
        files(job(program=PurePath("/home/a")), POD)
    assert files(job(program=PurePath("/home/a")), Pod("image"))
