"""docs/recipes.md and deploy/examples: each names the other, and what is written there holds."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import yaml

from memgate.gpus import CATALOGUE, find_product
from memgate.jobspec import parse_job_spec
from memgate.spec_text import read_job_text
from memgate_service.admission.kueue.controller import CONTROLLER
from tests.admission import JOB

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "deploy" / "examples"
RECIPES = (ROOT / "docs" / "recipes.md").read_text()

#: the objects that webhooks look at have a page of their own
_OTHERS = EXAMPLES / "kubernetes"


def _load(name: str, **modules: Any) -> dict[str, Any]:
    """Run an example as a module; ``modules`` stand for what is not installed here."""
    with pytest.MonkeyPatch.context() as patch:
        for module, contents in modules.items():
            made = ModuleType(module)
            vars(made).update(contents)
            patch.setitem(sys.modules, module, made)
        names: dict[str, Any] = {"__name__": name}
        source = (EXAMPLES / name).read_text()
        exec(compile(source, name, "exec", dont_inherit=True), names)
    return names


def _manifests(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((EXAMPLES / "kueue" / name).read_text()))


def _kueue() -> dict[str, dict[str, Any]]:
    """Return the objects for Kueue's own kinds, by kind and name."""
    return {f"{one['kind']}/{one['metadata']['name']}": one for one in _manifests("queue.yaml")}


def test_the_page_and_the_files_name_each_other() -> None:
    """No example without a word on it, no word on an example that is gone."""
    there = {
        str(path.relative_to(ROOT))
        for path in EXAMPLES.rglob("*.*")
        if path.is_file() and _OTHERS not in path.parents and "__pycache__" not in path.parts
    }
    named = set(re.findall(r"deploy/examples/[\w/.-]+\.\w+", RECIPES))
    assert len(there) >= 9
    assert named == there


def test_what_a_job_is_can_be_read() -> None:
    """Wherever it stands: a file, a variable of SkyPilot, an annotation."""
    task = yaml.safe_load((EXAMPLES / "skypilot.yaml").read_text())
    (job,) = _manifests("job.yaml")
    annotations = job["spec"]["template"]["metadata"]["annotations"]
    texts = [(EXAMPLES / name).read_text() for name in ("resnet50.json", "gpt2.yaml")]
    for text in (*texts, task["envs"]["MEMGATE_JOB"], annotations[JOB]):
        assert read_job_text(text).batch_size > 1
    assert parse_job_spec(yaml.safe_load((EXAMPLES / "request.json").read_text())["job"])


def test_kueues_objects_refer_to_each_other() -> None:
    """The queue wants our check, its flavors are there and say which GPU they are."""
    objects = _kueue()
    (check,) = (one for one in objects.values() if one["kind"] == "AdmissionCheck")
    assert check["spec"]["controllerName"] == CONTROLLER
    queue = objects["ClusterQueue/gpus"]["spec"]
    (rule,) = queue["admissionChecksStrategy"]["admissionChecks"]
    assert rule["name"] == check["metadata"]["name"]
    (group,) = queue["resourceGroups"]
    for flavor in group["flavors"]:
        assert [one["name"] for one in flavor["resources"]] == group["coveredResources"]
        labels = objects[f"ResourceFlavor/{flavor['name']}"]["spec"]["nodeLabels"]
        assert find_product(labels["nvidia.com/gpu.product"]) is not None
    (job,) = _manifests("job.yaml")
    local = objects[f"LocalQueue/{job['metadata']['labels']['kueue.x-k8s.io/queue-name']}"]
    assert local["metadata"]["namespace"] == job["metadata"]["namespace"]
    assert f"ClusterQueue/{local['spec']['clusterQueue']}" in objects


def test_the_controller_of_kueue_is_started_as_the_command_line_wants() -> None:
    """What it runs exists, as nobody special, with the account that has its rights."""
    objects = {one["kind"]: one for one in _manifests("controller.yaml")}
    pod = objects["Deployment"]["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == objects["ServiceAccount"]["metadata"]["name"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    (container,) = pod["containers"]
    assert container["command"] == ["memgate", "controller", "--kueue"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True


def _accelerators() -> Iterator[tuple[str, str, str]]:
    for name in ("T4", "L4", "L40S", "A10G", "A100", "V100", "P100", "H100", "H200"):
        yield "ray_submit.py", name, name.lower()
        yield "skypilot_policy.py", name, name.lower()
    yield "ray_submit.py", "A100-80G", "a100-80"
    yield "skypilot_policy.py", "A100-80GB", "a100-80"
    yield "skypilot_policy.py", "V100-32GB", "v100-32"
    yield "skypilot_policy.py", "RTX4090", "rtx-4090"


_SKY = {"AdminPolicy": object, "UserRequest": object, "MutatedUserRequest": SimpleNamespace}


@pytest.mark.parametrize(("example", "accelerator", "want"), list(_accelerators()))
def test_accelerators_are_found_in_the_catalogue(example: str, accelerator: str, want: str) -> None:
    """Of cards of one name the one with the least memory."""
    found = CATALOGUE[_load(example, sky=_SKY)["find_gpu_name"](accelerator)]
    names = {want, *(f"{want}-{size}" for size in (16, 32, 40, 80, 94))}
    like = [gpu for gpu in CATALOGUE.values() if gpu.name in names]
    assert found == min(like, key=lambda gpu: gpu.memory_bytes)


@pytest.mark.parametrize("example", ["ray_submit.py", "skypilot_policy.py"])
def test_an_accelerator_that_is_not_known_is_said_to_be(example: str) -> None:
    """Not guessed."""
    with pytest.raises(Exception, match=r"catalogue|memgate does not know"):
        _load(example, sky=_SKY)["find_gpu_name"]("TPU-V4")


def test_ray_is_told_what_to_run_and_where() -> None:
    """The words of the entrypoint stay words; the node must have the GPU that was asked about."""
    ray = _load("ray_submit.py")
    given = ray["read_arguments"](
        ["job.json", "--accelerator", "T4", "--num-gpus", "2", "--", "python", "a b.py", "--lr=1"]
    )
    said = ray["make_submission"](given.entrypoint, given.accelerator, given.num_gpus, "9f2c")
    assert said["entrypoint"] == "python 'a b.py' --lr=1"
    assert said["entrypoint_num_gpus"] == 2
    assert said["entrypoint_resources"] == {"accelerator_type:T4": 0.001}
    assert said["runtime_env"]["env_vars"] == {"MEMGATE_ESTIMATE_ID": "9f2c"}


def test_a_task_that_says_nothing_passes_skypilots_policy() -> None:
    """Untouched, and without a question: there is no server here."""
    policy = _load("skypilot_policy.py", sky={**_SKY, "MutatedUserRequest": _request})
    task = SimpleNamespace(envs={"OTHER": "1"}, resources={"anything"})
    asked = SimpleNamespace(task=task, skypilot_config={"a": 1})
    assert policy["MemgatePolicy"].validate_and_mutate(asked) == (task, {"a": 1})
    assert task == SimpleNamespace(envs={"OTHER": "1"}, resources={"anything"})


def _request(task: object, config: object) -> tuple[object, object]:
    return task, config
