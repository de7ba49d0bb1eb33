"""A pod says where it will run in many ways; each is understood, or said not to be."""

from __future__ import annotations

from typing import Any

import pytest

from memgate.decision import Decision
from memgate.errors import Fault, InputError, MemgateError, UnsupportedGpuError
from memgate.gpus import CATALOGUE
from memgate.units import GIB, MIB
from memgate_service.admission.core.places import Place
from memgate_service.admission.kubernetes.objects import SHAPES, Pod, find_pods
from memgate_service.admission.kubernetes.places import (
    UnknownLabelError,
    asks_for_gpu,
    find_places,
    names_gpu,
)
from tests.admission import make_pod
from tests.builders import build_estimate

_LABEL = "nvidia.com/gpu.product"
_MACHINE = "node.kubernetes.io/instance-type"


def _pod(**fields: Any) -> Pod:
    (pod,) = find_pods(make_pod(**fields), SHAPES["Pod"])
    return pod


def _affinity(*rules: dict[str, Any]) -> dict[str, Any]:
    terms = [{"matchExpressions": [rule]} for rule in rules]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return {"nodeAffinity": required}


def _in(*values: str, key: str = _LABEL, operator: str = "In") -> dict[str, Any]:
    return {"key": key, "operator": operator, "values": list(values)}


@pytest.mark.parametrize(
    ("fields", "want"),
    [
        pytest.param({"nodeSelector": {_LABEL: "Tesla-T4"}}, ["t4"], id="NVIDIA's label"),
        pytest.param({"nodeSelector": {_LABEL: "Tesla-T4-SHARED"}}, ["t4"], id="by turns"),
        pytest.param({"nodeSelector": {_LABEL: "NVIDIA-H100-PCIe"}}, ["h100-pcie"], id="variant"),
        pytest.param(
            {"nodeSelector": {_LABEL: "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb"}},
            ["a100-80-1g.10gb"],
            id="MIG, single strategy",
        ),
        pytest.param(
            {"nodeSelector": {"cloud.google.com/gke-accelerator": "nvidia-tesla-t4"}},
            ["t4"],
            id="Google's label",
        ),
        pytest.param(
            {"nodeSelector": {"cloud.google.com/gke-accelerator": "nvidia-h200-141gb"}},
            ["h200"],
            id="Google's label, with the memory",
        ),
        pytest.param(
            {"nodeSelector": {"karpenter.k8s.aws/instance-gpu-name": "a100"}},
            ["a100-40", "a100-80"],
            id="a label that leaves out which",
        ),
        pytest.param(
            {
                "nodeSelector": {"karpenter.k8s.aws/instance-gpu-name": "a100"},
                "annotations": {"memgate.dev/gpu": "a100-80"},
            },
            ["a100-80"],
            id="our annotation tells which",
        ),
        pytest.param(
            {"affinity": _affinity(_in("Tesla-T4", "NVIDIA-A10G"))}, ["t4", "a10g"], id="affinity"
        ),
        pytest.param(
            {"affinity": _affinity(_in("Tesla-T4"), _in("NVIDIA-L4"))}, ["t4", "l4"], id="two terms"
        ),
        pytest.param(
            {"limits": {"nvidia.com/mig-1g.10gb": "1"}},
            ["a100-40-1g.10gb", "a100-80-1g.10gb", "h100-80-1g.10gb"],
            id="MIG, of either card",
        ),
        pytest.param(
            {
                "limits": {"nvidia.com/mig-1g.10gb": "1"},
                "nodeSelector": {_LABEL: "NVIDIA-H100-80GB-HBM3"},
            },
            ["h100-80-1g.10gb"],
            id="MIG, of one card",
        ),
        pytest.param(
            {"limits": {"nvidia.com/mig-1g.10gb.shared": "1"}},
            ["a100-40-1g.10gb", "a100-80-1g.10gb", "h100-80-1g.10gb"],
            id="MIG, by turns",
        ),
        pytest.param({"annotations": {"memgate.dev/gpu": "l4"}}, ["l4"], id="our annotation"),
        pytest.param(
            {"annotations": {"memgate.dev/gpu": "h100-80"}, "nodeSelector": {_LABEL: "Tesla-T4"}},
            ["t4"],
            id="our annotation makes no card larger",
        ),
        pytest.param(
            {"annotations": {"memgate.dev/gpu": "t4"}, "nodeSelector": {_LABEL: "NVIDIA-L4"}},
            ["t4"],
            id="it may make one smaller",
        ),
        pytest.param(
            {"annotations": {"memgate.dev/gpu": "l4"}, "nodeSelector": {_LABEL: "NVIDIA-B100"}},
            ["l4"],
            id="it tells what a card is that we do not know",
        ),
        pytest.param(
            {
                "nodeSelector": {_LABEL: "Tesla-T4"},
                "affinity": _affinity(_in("Tesla-T4", "NVIDIA-L4", "NVIDIA-B100")),
            },
            ["t4"],
            id="selector and affinity both hold",
        ),
        pytest.param(
            {"affinity": _affinity(_in("Tesla-T4"), _in("ssd", key="disk"))},
            ["a10g", "a30"],
            id="a term without a card takes any",
        ),
        pytest.param(
            {"limits": {"nvidia.com/mig-1g.10gb": "0"}, "nodeSelector": {_LABEL: "Tesla-T4"}},
            ["t4"],
            id="no MIG at all",
        ),
        pytest.param({}, ["a10g", "a30"], id="what the cluster has"),
        pytest.param({"nodeSelector": {_MACHINE: "p4d.24xlarge"}}, ["a100-40"], id="a machine"),
        pytest.param(
            {"nodeSelector": {_MACHINE: "m5.large"}}, ["a10g", "a30"], id="a machine without a GPU"
        ),
        pytest.param(
            {"affinity": _affinity(_in("g5.xlarge", "g6.xlarge", key=_MACHINE))},
            ["a10g", "l4"],
            id="one of several machines",
        ),
        pytest.param(
            {"affinity": _affinity(_in("g5.xlarge", "our-own", key=_MACHINE))},
            ["a10g", "a30"],
            id="a machine that is not known among them",
        ),
        pytest.param(
            {"nodeSelector": {_MACHINE: "Standard_NV18ads_A10_v5"}},
            ["NV18ads_A10_v5"],
            id="a machine with a part of a GPU",
        ),
    ],
)
def test_a_gpu_is_found_by_what_names_it(fields: dict[str, Any], want: list[str]) -> None:
    """By annotation, resource, selector, affinity, or what the operator says."""
    cluster = (CATALOGUE["a10g"], CATALOGUE["a30"])
    assert [place.gpu.name for place in find_places(_pod(**fields), cluster)] == want


@pytest.mark.parametrize(
    ("fields", "want_mib"),
    [
        pytest.param(
            {"affinity": _affinity(_in("40000", key="nvidia.com/gpu.memory", operator="Gt"))},
            38720,  # of what the label says, a job sees a little less
            id="at least so much",
        ),
        pytest.param({"nodeSelector": {"nvidia.com/gpu.memory": "15360"}}, 14868.48, id="so much"),
        pytest.param({"limits": {"nvidia.com/mig-2g.21gb": "1"}}, 20428.8, id="unknown profile"),
        pytest.param(
            {"nodeSelector": {_LABEL: "NVIDIA-A100-SXM4-40GB-MIG-1g.6gb-SHARED"}},
            5836.8,
            id="unknown profile, single strategy",
        ),
        pytest.param(
            {
                "annotations": {
                    "memgate.dev/gpu": '{"memory_bytes": 1048576, "compute_capability": "8.6"}'
                }
            },
            1,
            id="described by us",
        ),
    ],
)
def test_a_gpu_that_is_in_no_catalogue_is_described(
    fields: dict[str, Any], want_mib: float
) -> None:
    """By its memory, where that is all that is said."""
    (place,) = find_places(_pod(**fields), ())
    assert place.gpu.memory_bytes == int(want_mib * MIB)
    assert not place.is_assumed


@pytest.mark.parametrize(
    ("label_mib", "name"),
    [
        *((15360, "t4"), (12288, "rtx-3060"), (8188, "rtx-4060"), (24564, "rtx-4090")),
        *(
            (23034, "l4"),
            (46068, "l40s"),
            (40960, "a100-40"),
            (81920, "a100-80"),
            (81559, "h100-80"),
        ),
    ],
)
def test_a_label_of_memory_promises_no_more_than_the_card_shows(label_mib: int, name: str) -> None:
    """Labels as NVIDIA's feature discovery sets them, against what jobs were seen to get."""
    fields = {"nodeSelector": {"nvidia.com/gpu.memory": str(label_mib)}}
    (place,) = find_places(_pod(**fields), ())
    assert 0.95 < place.capacity_bytes / CATALOGUE[name].memory_bytes <= 1


_WHOLE = CATALOGUE["a100-80"].memory_bytes
_A100 = {"nodeSelector": {_LABEL: "NVIDIA-A100-SXM4-80GB"}}


def _sidecar(limits: dict[str, Any]) -> dict[str, Any]:
    return {"name": "side", "restartPolicy": "Always", "resources": {"limits": limits}}


@pytest.mark.parametrize(
    ("fields", "want_bytes", "want_by"),
    [
        ({"limits": {"nvidia.com/gpumem": 4000}}, 4000 * MIB, "nvidia.com/gpumem"),
        ({"limits": {"nvidia.com/gpumem": "4k"}}, 4000 * MIB, "nvidia.com/gpumem"),
        ({"limits": {"volcano.sh/vgpu-memory": "4096"}}, 4 * GIB, "volcano.sh/vgpu-memory"),
        ({"limits": {"koordinator.sh/gpu-memory": "4Gi"}}, 4 * GIB, "koordinator.sh/gpu-memory"),
        (
            {"limits": {"nvidia.com/gpumem-percentage": 50}, **_A100},
            CATALOGUE["a100-80"].memory_bytes // 2,
            "nvidia.com/gpumem-percentage",
        ),
        (
            {"limits": {"koordinator.sh/gpu": 50}, **_A100},
            CATALOGUE["a100-80"].memory_bytes // 2,
            "koordinator.sh/gpu",
        ),
        (
            {"limits": {"nvidia.com/gpumem-percentage": 150}, **_A100},
            CATALOGUE["a100-80"].memory_bytes,
            "nvidia.com/gpumem-percentage",
        ),
        ({"limits": {"nvidia.com/gpumem": 0, "nvidia.com/gpu": 1}}, _WHOLE, ""),
        (
            {"limits": {}, "initContainers": [_sidecar({"nvidia.com/gpumem": "4e3"})]},
            4000 * MIB,
            "nvidia.com/gpumem",
        ),
        (
            {"initContainers": [_sidecar({"nvidia.com/gpumem": 1})]},
            _WHOLE,
            "",
        ),
        ({"annotations": {"gpu-memory": "4096"}, "limits": {}}, 4 * GIB, "annotation gpu-memory"),
        (
            {"annotations": {"gpu-fraction": "0.5"}, "limits": {}, **_A100},
            CATALOGUE["a100-80"].memory_bytes // 2,
            "annotation gpu-fraction",
        ),
        ({"limits": {"nvidia.com/gpumem": 1 << 40}, **_A100}, _WHOLE, "nvidia.com/gpumem"),
        ({"limits": {"nvidia.com/gpumem": 100_000}}, 100_000 * MIB, "nvidia.com/gpumem"),
        (
            {"limits": {"nvidia.com/gpumem": 1 << 40}},
            max(gpu.memory_bytes for gpu in CATALOGUE.values()),
            "nvidia.com/gpumem",
        ),
    ],
)
def test_declared_memory_is_the_most_a_job_can_have(
    fields: dict[str, Any], want_bytes: int, want_by: str
) -> None:
    """HAMi, Volcano, Koordinator and KAI give a job that much, and no more than the GPU has."""
    (place,) = find_places(_pod(**fields), ())
    declared_by = place.declared.name if place.declared else ""
    assert (place.capacity_bytes, declared_by) == (want_bytes, want_by)


@pytest.mark.parametrize(
    "fields",
    [
        {"limits": {"nvidia.com/gpu": 1, "nvidia.com/gpumem-percentage": 10}},
        {"limits": {"koordinator.sh/gpu": 10}},
        {"limits": {}, "annotations": {"gpu-fraction": "0.1"}},
    ],
)
def test_a_share_of_a_card_that_nobody_names_is_no_amount(fields: dict[str, Any]) -> None:
    """A tenth of an H200 is more than a T4: such a pod must not be refused for it."""
    (place,) = find_places(_pod(**fields), ())
    assert place.is_assumed
    assert place.declared is None
    (known,) = find_places(_pod(**fields), (CATALOGUE["t4"],))
    assert known.capacity_bytes == CATALOGUE["t4"].memory_bytes // 10


@pytest.mark.parametrize(
    ("fields", "want"),
    [
        ({"limits": {"nvidia.com/gpumem": 1}}, "8001 MiB"),
        ({"limits": {"nvidia.com/gpumem-percentage": 1}}, "54 %"),
        ({"limits": {}, "annotations": {"gpu-fraction": "0.01"}}, "0.54"),
    ],
)
def test_what_to_declare_is_said_in_the_unit_it_is_declared_in(
    fields: dict[str, Any], want: str
) -> None:
    """So that a person can write it down, and it suffices."""
    (place,) = find_places(_pod(**fields), (CATALOGUE["t4"],))
    assert place.how_to_declare(8000 * MIB + 1) == want


@pytest.mark.parametrize(
    ("fields", "want"),
    [
        ({"nodeSelector": {_LABEL: "NVIDIA-B100"}}, "'NVIDIA-B100' is not in the catalogue"),
        (
            {"nodeSelector": {_LABEL: "NVIDIA-A100-SXM4-80GB-MIG-mixed"}},
            "'NVIDIA-A100-SXM4-80GB-MIG-mixed' is not in the catalogue",
        ),
        ({"limits": {"nvidia.com/mig-whole": "1"}}, "not a MIG profile"),
        ({"annotations": {"memgate.dev/gpu": "gtx"}}, "annotation memgate.dev/gpu: gpu is 'gtx'"),
        ({"limits": {"nvidia.com/gpumem": "much"}}, "nvidia.com/gpumem is 'much'"),
        ({"limits": {"nvidia.com/gpumem": "-1"}}, "write a number above 0"),
        ({"annotations": {"gpu-fraction": "NaN"}}, "write a number, such as"),
        ({"annotations": {"gpu-memory": "1X"}}, "gpu-memory is '1X'"),
    ],
)
def test_what_makes_no_sense_is_named(fields: dict[str, Any], want: str) -> None:
    """The field, its value and the rule."""
    with pytest.raises(MemgateError) as refused:
        find_places(_pod(**fields), ())
    assert want in refused.value.message


def test_only_an_unknown_card_is_no_fault_of_the_pod() -> None:
    """Labels are the operator's: such a pod is not refused. Our annotation is its author's."""
    with pytest.raises(UnknownLabelError) as unknown:
        find_places(_pod(nodeSelector={_LABEL: "NVIDIA-B100"}), ())
    assert unknown.value.fault is Fault.OPERATOR
    with pytest.raises(InputError) as wrong:
        find_places(_pod(annotations={"memgate.dev/gpu": "NVIDIA-B100"}), ())
    assert wrong.value.fault is Fault.CALLER
    with pytest.raises(UnsupportedGpuError, match=r"annotation memgate.dev/gpu: gpu is 'MI300X'"):
        find_places(_pod(annotations={"memgate.dev/gpu": "MI300X"}), ())


@pytest.mark.parametrize(
    ("fields", "want_asks", "want_names"),
    [
        ({}, True, False),
        ({"limits": {}}, False, False),
        ({"limits": {"cpu": "1"}}, False, False),
        ({"limits": {"nvidia.com/mig-1g.10gb": "1"}}, True, True),
        ({"limits": {}, "annotations": {"gpu-fraction": "0.5"}}, True, False),
        ({"nodeSelector": {"zone": "a"}}, True, False),
        ({"nodeSelector": {_LABEL: "Tesla-T4"}}, True, True),
    ],
)
def test_it_is_known_whether_a_gpu_is_wanted_and_which(
    fields: dict[str, Any], want_asks: bool, want_names: bool
) -> None:
    """What is missing may be filled in."""
    pod = _pod(**fields)
    assert (asks_for_gpu(pod), names_gpu(pod)) == (want_asks, want_names)


@pytest.mark.parametrize(
    ("communication", "want"),
    [
        (None, Decision.ADMIT),
        ({"low_bytes": 0, "expected_bytes": 0, "high_bytes": 0}, Decision.UNCERTAIN),
    ],
    ids=["one rank", "several"],
)
def test_ranks_that_use_nccl_are_not_plainly_admitted_on_a_part(
    communication: dict[str, int] | None, want: Decision
) -> None:
    """Its size says that it fits, and NCCL that it may not start."""
    estimate = build_estimate(
        required_bytes=GIB, needs_bytes=GIB, context_bytes=0, communication=communication
    )
    place = Place(gpu=CATALOGUE["a100-80-2g.20gb"])

    assert place.compare(estimate).decision is want
