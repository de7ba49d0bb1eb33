"""The chart as a whole, by a real helm: values, names, the plain manifests, what Kubernetes takes.

What a real API server says to it is in ``tests/integration/test_kube_chart.py``.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from memgate.version import __version__
from tests.chart import CHART, MANIFESTS, ROOT, helm, render, render_manifests, render_text
from tests.packaging.chart_cases import (
    CUSTOM,
    HOLDING,
    VALUE_SETS,
    Values,
    by_kind,
    find_container,
    find_pods,
    render_set,
)
from tests.parts import find_part

pytestmark = pytest.mark.skipif(find_part("helm") is None, reason="helm is not here: make parts")


@pytest.mark.parametrize("values", VALUE_SETS.values(), ids=VALUE_SETS)
def test_helm_finds_nothing_to_say_about_it(values: Values) -> None:
    """Strictly, with each set of values."""
    sets = [f"--set-json={key}={json.dumps(value)}" for key, value in values.items()]

    ran = helm("lint", "--strict", CHART, *sets, check=False)

    assert ran.returncode == 0, ran.stdout
    assert "[WARNING]" not in ran.stdout


@pytest.mark.parametrize("version", ["1.25", "1.37"])
def test_kubernetes_knows_every_field(version: str) -> None:
    """Checked strictly against the schemas of an old and a new version of Kubernetes."""
    different = {
        json.dumps(found): found
        for name in VALUE_SETS
        for found in render_set(name, f"--kube-version={version}")
        if found["kind"] not in CUSTOM
    }

    assert len(different) > 100
    for found in different.values():
        kubernetes_validate.validate(found, f"{version}.0", strict=True)


@pytest.mark.parametrize("name", VALUE_SETS)
def test_no_name_is_used_twice(name: str) -> None:
    """Of two objects of a kind and name, one would be lost."""
    names = [(found["kind"], found["metadata"]["name"]) for found in render_set(name)]

    assert len(names) == len(set(names))


def test_images_are_of_this_version() -> None:
    """And of the operator's registry."""
    version = __version__
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())

    assert chart["appVersion"] == chart["version"] == version
    # somebody who follows the page builds what the chart pulls
    for path in (ROOT / "docs" / "kubernetes.md", ROOT / "deploy/examples/kueue/controller.yaml"):
        tags = set(re.findall(r"memgate-(?:service|worker):(\d[\w.]*)", path.read_text()))
        assert tags == {version}, path
    images = {
        find_container(render_set("as it comes"), name)["image"] for name in ("api", "worker-slow")
    }
    assert images == {f"memgate-service:{version}", f"memgate-worker:{version}"}
    image = find_container(render_set("everything"), "api")["image"]
    assert image == f"registry.example.com/team/memgate-service@sha256:{'a' * 64}"
    tagged = render({"image.registry": "registry.example.com/team", "image.tag": "9"})
    assert find_container(tagged, "api")["image"] == "registry.example.com/team/memgate-service:9"


def test_the_chart_can_be_packed_and_rendered_from_its_archive(tmp_path: Path) -> None:
    """As it is pushed to a registry: nothing that it needs is left out, its README is in it."""
    helm("package", CHART, f"--destination={tmp_path}")
    (archive,) = tmp_path.glob("memgate-*.tgz")

    said = helm("template", "memgate", archive, "--namespace=memgate", "--skip-tests").stdout
    packed = [one for one in yaml.safe_load_all(said) if one]
    assert [(one["kind"], one["metadata"]["name"]) for one in packed] == [
        (one["kind"], one["metadata"]["name"]) for one in render({}, "--skip-tests")
    ]
    assert "helm install" in helm("show", "readme", archive).stdout


def test_components_are_placed_and_named_as_people_expect() -> None:
    """A component's own values count instead of those for all; annotations are added up."""
    objects = render_set("everything")
    pods = dict(find_pods(objects))
    accounts = by_kind(objects, "ServiceAccount")

    assert pods["api"]["spec"]["affinity"] == {"nodeAffinity": {}}
    assert pods["controller"]["spec"]["affinity"] == {"podAffinity": {}}
    assert pods["keys"]["spec"]["affinity"] == {"nodeAffinity": {}}
    assert accounts["gate-api"]["metadata"]["annotations"] == {
        "owner": "platform",
        "role": "reader",
    }
    assert accounts["gate-worker"]["metadata"]["annotations"] == {"owner": "platform"}
    renamed = render({"nameOverride": "fits"}, name="one")
    assert "one-fits-api" in by_kind(renamed, "Deployment")
    labels = {one["metadata"]["labels"]["app.kubernetes.io/name"] for one in renamed}
    assert labels == {"fits"}


@pytest.mark.parametrize(
    ("values", "want"),
    [
        ({"admission.onTimeout": "wait"}, "/admission/onTimeout"),
        ({"admission.timeoutSeconds": 31}, "/admission/timeoutSeconds"),
        ({"admission.failurePolicy": "ignore"}, "/admission/failurePolicy"),
        ({"admission.rightSize": ["mps"]}, "/admission/rightSize"),
        ({"admission.rules": []}, "/admission/rules"),
        ({"admission.paths": {"A.b": {"templates": ["spec"]}}}, "/admission/paths"),
        ({"api.replica": 3}, "'replica' not allowed"),
        ({"api.replicas": 0}, "/api/replicas"),
        ({"api.resources.limits.memory": None}, "/api/resources/limits"),
        ({"workers.jobMemoryBytes": 8589934592}, "/workers/jobMemoryBytes"),
        ({"workers.slow.autoscaling.kind": "vpa"}, "/workers/slow/autoscaling/kind"),
        ({"valkey.external.url": "queue:6379"}, "/valkey/external/url"),
        ({"networkPolicy.apiServerCidrs": ["10.0.0.1"]}, "/networkPolicy/apiServerCidrs/0"),
        ({"certificates.kind": "none"}, "/certificates/kind"),
        ({"env": {"MAX_JOBS": "1"}}, "MAX_JOBS"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_wrong_value_is_named(values: Values, want: str) -> None:
    """Before anything is installed."""
    sets = [f"--set-json={key}={json.dumps(value)}" for key, value in values.items()]

    ran = helm("template", "memgate", CHART, *sets, check=False)

    assert ran.returncode != 0
    assert want in ran.stderr


@pytest.mark.parametrize(
    ("values", "want"),
    [
        ({**HOLDING, "admission.mutate": False}, "needs admission.mutate"),
        ({**HOLDING, "controller.enabled": "never"}, "nobody would release"),
        ({"valkey.enabled": False}, "set valkey.external.url"),
        (
            {**VALUE_SETS["another Valkey"], "workers.fast.autoscaling.kind": "keda"},
            "workers.fast.autoscaling.source is valkey",
        ),
        ({"certificates.kind": "existing"}, "set certificates."),
        ({"workers.slow.autoscaling.minReplicas": 9}, "more than maxReplicas"),
    ],
    ids=[
        *("hold without mutate", "hold without controller"),
        *("no queue", "KEDA without its queue", "no certificate", "minimum above maximum"),
    ],
)
def test_values_that_contradict_each_other_are_refused(values: Values, want: str) -> None:
    """With what to set instead."""
    sets = [f"--set-json={key}={json.dumps(value)}" for key, value in values.items()]

    ran = helm("template", "memgate", CHART, *sets, check=False)

    assert ran.returncode != 0
    assert want in ran.stderr


def test_the_schema_knows_every_value() -> None:
    """And values.yaml has every value that the schema knows."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())
    definitions = schema["$defs"]

    def compare(given: Any, described: Any, where: str) -> None:
        described = definitions.get(described.get("$ref", "").rpartition("/")[2], described)
        if "properties" in described and described.get("required"):
            assert set(given) == set(described["required"]), where
            for name, value in given.items():
                compare(value, described["properties"][name], f"{where}.{name}")

    compare(values, schema, "")


def test_the_values_that_are_documented_are_values() -> None:
    """With the defaults that the page tells, where it tells one word."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    page = (ROOT / "docs" / "kubernetes.md").read_text().partition("\n## Values\n")[2]
    rows = re.findall(
        r"^\| (`\w+.*?`) \| (.*?) \|", page.partition("\n\nAll pods ")[0], re.MULTILINE
    )
    told = [(path, default) for cell, default in rows for path in re.findall(r"`(.+?)`", cell)]

    assert len(told) >= 20
    for path, default in told:
        found = values
        for name in path.split("."):
            found = found[name]
        if re.fullmatch(r"`[\w-]+`", default) and "," not in default:
            assert default == f"`{found}`".replace("True", "true").replace("False", "false"), path


@pytest.mark.parametrize(
    ("release", "want"),
    [("memgate", "memgate-api"), ("gate", "gate-memgate-api"), ("a" * 53, f"{'a' * 40}-api")],
)
def test_names_follow_the_release(release: str, want: str) -> None:
    """And never grow too long for Kubernetes."""
    objects = render(HOLDING, name=release)

    assert want in by_kind(objects, "Deployment")
    assert all(len(found["metadata"]["name"]) <= 63 for found in objects)


def test_a_release_is_known_by_its_name() -> None:
    """Two of them in a cluster do not take each other's objects; one of them installs the kinds."""
    names = [
        {
            (found["kind"], found["metadata"]["name"])
            for found in render({"crds.install": False}, name=name)
            if "namespace" not in found["metadata"]
        }
        for name in ("one", "two")
    ]

    assert not names[0] & names[1]


def test_the_plain_manifests_are_what_the_chart_renders_now() -> None:
    """`make manifests` after a change."""
    assert (MANIFESTS / "memgate.yaml").read_text() == render_manifests()


def test_the_plain_manifests_hold_no_secret_and_no_hook() -> None:
    """They are public, and kubectl knows no hooks."""
    text = (MANIFESTS / "memgate.yaml").read_text()
    objects = [found for found in yaml.safe_load_all(text) if found]

    assert "helm.sh/hook" not in text
    assert all(not {"data", "stringData"} & set(s) for s in by_kind(objects, "Secret").values())
    namespace = by_kind(objects, "Namespace")["memgate"]
    labels = namespace["metadata"]["labels"]
    assert labels == {"pod-security.kubernetes.io/enforce": "restricted"}


def test_the_notes_tell_the_next_step() -> None:
    """What to type, and what happens while memgate is down."""
    told = helm(
        "install", "memgate", CHART, "--namespace=memgate", "--dry-run=client", check=True
    ).stdout

    assert "kubectl exec --namespace memgate deploy/memgate-api -- memgate keys create" in told
    assert "helm test memgate --namespace memgate" in told
    assert "let in unchecked" in told
    assert "everywhere except in\nmemgate, kube-system, kube-public, kube-node-lease" in told


def test_what_is_rendered_holds_no_loose_ends() -> None:
    """No empty list or missing value where a template met one."""
    for name in VALUE_SETS:
        sets = [f"--set-json={k}={json.dumps(v)}" for k, v in VALUE_SETS[name].items()]
        text = render_text(*sets)
        assert "<no value>" not in text
        assert "%!" not in text
