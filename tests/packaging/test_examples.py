"""The objects of deploy/examples are what Kubernetes takes, and what memgate reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from memgate.gpus import CATALOGUE
from memgate_service.admission.kubernetes.cases import find_cases, references
from memgate_service.admission.kubernetes.objects import SHAPES, find_pods

EXAMPLES = Path(__file__).parents[2] / "deploy" / "examples" / "kubernetes"
KUEUE = EXAMPLES.with_name("kueue")
_FILES = sorted(path.name for path in EXAMPLES.glob("*.yaml"))

#: whose schemas Kubernetes itself has
_OWN = {"v1", "batch/v1", "apps/v1"}


def _read(name: str) -> list[Any]:
    return list(yaml.safe_load_all((EXAMPLES / name).read_text()))


@pytest.mark.parametrize("name", _FILES)
def test_an_example_is_a_valid_object(name: str) -> None:
    """By Kubernetes' own schemas, strictly; kinds of others have none there."""
    for document in _read(name):
        if document["apiVersion"] in _OWN:
            kubernetes_validate.validate(document, "1.37", strict=True)


@pytest.mark.parametrize("name", _FILES)
def test_an_example_describes_a_job_and_a_gpu(name: str) -> None:
    """Each is a case that memgate can look at; what it is filled in with is not there yet."""
    *others, document = _read(name)
    group = document["apiVersion"].rpartition("/")[0]
    kind = f"{document['kind']}.{group}".rstrip(".")
    pods = find_pods(document, SHAPES[kind])
    texts = {one["metadata"]["name"]: one["data"]["job"] for one in others}
    assert references(pods) == texts.keys()

    cases = find_cases(pods, texts, ())

    assert cases
    for case in cases:
        assert not case.doubt
        assert all(place.gpu.name in CATALOGUE for place in case.places)


def test_there_is_an_example_of_every_kind() -> None:
    """But for those that differ from another in their name only."""
    kinds = {document["kind"] for name in _FILES for document in _read(name)}
    known = {kind.partition(".")[0] for kind in SHAPES}
    assert known - kinds == {"RayCluster"}


@pytest.mark.parametrize("name", ["controller.yaml", "job.yaml"])
def test_what_kueue_needs_of_kubernetes_has_its_schema(name: str) -> None:
    """Strictly: a field that does not exist is an error."""
    for document in yaml.safe_load_all((KUEUE / name).read_text()):
        kubernetes_validate.validate(document, "1.30.0", strict=True)
