"""The operator's own GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from memgate.calibration import find_bounds
from memgate.contract import Work, WorkKind
from memgate.errors import InputError
from memgate.gpus import (
    BUILT_IN,
    CATALOGUE,
    GpuRequest,
    digest_own_gpus,
    find_gpu,
    find_product,
    find_reports,
    use_own_gpus,
)
from memgate.gpus.own import read_own_gpus
from memgate.units import GIB, MIB

WHOLE = {
    "name": "a100-64",
    "product": "NVIDIA A100-SXM-64GB",
    "memory_bytes": 63 * GIB,
    "compute_capability": "8.0",
    "multiprocessors": 124,
}


@pytest.fixture(autouse=True)
def _without_own() -> Iterator[None]:
    yield
    use_own_gpus(())


def _read(*entries: dict[str, Any]) -> Any:
    return read_own_gpus({"gpus": list(entries)})


def _use(*entries: dict[str, Any]) -> None:
    use_own_gpus(_read(*entries))


def test_a_gpu_is_known_once_it_is_described() -> None:
    """By its name, by its product, and with its source."""
    _use(WHOLE)

    gpu = find_gpu("A100-64GB")
    assert (gpu.name, gpu.multiprocessors, gpu.library_bytes) == ("a100-64", 124, 34 * MIB)
    assert find_product("NVIDIA-A100-SXM-64GB") == gpu
    assert "MEMGATE_GPUS" in find_reports(gpu).source
    assert len(CATALOGUE) == len(BUILT_IN) + 1


def test_what_is_not_said_is_taken_from_another() -> None:
    """All but the name; libraries may be told, too."""
    (gpu,) = _read({"name": "lab", "like": "a100-40", "memory_bytes": GIB})
    like = BUILT_IN["a100-40"]
    assert (gpu.memory_bytes, gpu.product) == (GIB, "lab")
    assert gpu.compute_capability == like.compute_capability
    assert (gpu.multiprocessors, gpu.library_bytes) == (like.multiprocessors, like.library_bytes)

    (gpu,) = _read({"name": "lab", "like": "a100-40", "library_bytes": 0})
    assert (gpu.memory_bytes, gpu.library_bytes) == (like.memory_bytes, 0)


def test_a_built_in_gpu_is_replaced_only_on_purpose() -> None:
    """With the same values it may be there; the operator's own comes first."""
    known = BUILT_IN["l40s"]
    same = {"name": "l40s", "like": "l40s", "product": known.product}
    assert _read(same) == (known,)

    _use(same | {"memory_bytes": 44 * GIB, "replaces": True})

    assert find_gpu("L40S").memory_bytes == 44 * GIB
    assert find_product("NVIDIA-L40S") == find_gpu("l40s")
    assert len(CATALOGUE) == len(BUILT_IN)


@pytest.mark.parametrize(
    ("document", "want"),
    [
        ({}, "gpus is missing"),
        ({"gpus": [], "more": 1}, "more is 1: there is no such field"),
        ([], "file"),
        ({"gpus": [{"name": "x"}]}, "gpus.0 (x): memory_bytes: without 'like' it must be given"),
        ({"gpus": [WHOLE | {"memory_bytes": "5"}]}, "gpus.0: memory_bytes is '5'"),
        ({"gpus": [WHOLE | {"memory_bytes": 0}]}, "memory_bytes is 0"),
        ({"gpus": [WHOLE | {"compute_capability": "8"}]}, "a major and a minor number"),
        ({"gpus": [WHOLE | {"name": "A 100"}]}, "name is 'A 100'"),
        ({"gpus": [WHOLE | {"memory_byte": 1}]}, "no such field; did you mean 'memory_bytes'"),
        ({"gpus": [{"name": "x", "like": "a100-8O"}]}, "did you mean 'a100-80'"),
        ({"gpus": [WHOLE, WHOLE]}, "gpus.1 (a100-64): name is 'a100-64': two entries have this"),
        ({"gpus": [WHOLE | {"name": "t4"}]}, "with other values; take another name, or add"),
        ({"gpus": [WHOLE | {"name": "g5.xlarge"}]}, "it means a cloud's machine type"),
        ({"gpus": [WHOLE | {"name": "mi300x"}]}, "another vendor's GPU; take another name"),
    ],
)
def test_a_mistake_is_named(document: object, want: str) -> None:
    """The entry, the field, its value, the rule, the next step."""
    with pytest.raises(InputError) as raised:
        read_own_gpus(document)

    assert want in raised.value.message


def test_a_change_of_the_file_is_another_question() -> None:
    """Answers name the GPUs on which a job fits, so none of before is returned."""
    work = Work(kind=WorkKind.ESTIMATE, trace="0", gpu=GpuRequest(name="t4"))
    ids = [work.id()]
    for size in (62 * GIB, 63 * GIB):
        _use(WHOLE | {"memory_bytes": size})
        ids.append(work.id())
    assert len(set(ids)) == 3

    _use(WHOLE | {"memory_bytes": 62 * GIB})
    assert work.id() == ids[1]
    use_own_gpus(())
    assert (work.id(), digest_own_gpus()) == (ids[0], "")


def test_a_measured_context_takes_the_place_of_the_documented_range() -> None:
    """The peak is shown with the usual, and a job is admitted with the most."""
    context = {"low_bytes": 480, "usual_bytes": 500, "high_bytes": 530}
    (gpu,) = _read({"name": "lab", "like": "l4", "context": context})
    assert gpu.context is not None
    assert gpu.context[:3] == (480, 500, 530)
    assert find_bounds(gpu).context.high_bytes == 530


def test_a_context_out_of_order_is_refused() -> None:
    """The message names the field and the rule."""
    context = {"low_bytes": 600, "usual_bytes": 500, "high_bytes": 530}
    with pytest.raises(InputError, match=r"context\.usual_bytes.*low <= usual <= high"):
        _read({"name": "lab", "like": "l4", "context": context})
