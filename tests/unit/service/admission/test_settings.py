"""What an operator sets for the gate is checked when a program starts."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from memgate_service.admission.kubernetes.settings import AdmissionSettings
from memgate_service.http.queue_asker import read_timeout


@pytest.mark.parametrize(
    ("name", "value", "want"),
    [
        ("admission_gpus", "t4,gtx", "gpu is 'gtx': it is not in the catalogue"),
        (
            "admission_gpus",
            "h100",
            "gpu is 'h100': more than one GPU of the catalogue is called that",
        ),
        ("admission_gpus", "NVIDIA-B100", "gpu is 'NVIDIA-B100': it is not in the catalogue"),
        ("right_size", "hami,magic", "write 'auto', 'none', or some of hami,"),
        ("admission_paths", {"A.b": {"templates": ["spec"]}}, "'spec' is not a JSON pointer"),
        ("admission_paths", {"A.b": {"template": "/spec"}}, "Extra inputs are not permitted"),
        ("admission_on_timeout", "wait", "'admit', 'reject' or 'hold'"),
        ("admission_wait_seconds", 31, "less than or equal to 30"),
    ],
)
def test_a_wrong_setting_is_refused(name: str, value: object, want: str) -> None:
    """With the rule."""
    with pytest.raises(ValidationError, match=want.replace("(", r"\(")):
        AdmissionSettings.model_validate({name: value})


def test_cards_may_be_named_as_their_nodes_are_labelled() -> None:
    """A selector that we fill in must find them: of one card there are several labels."""
    settings = AdmissionSettings(admission_gpus="t4, NVIDIA-A100-80GB-PCIe,NVIDIA-A100-SXM4-80GB")
    assert [gpu.name for gpu in settings.gpus] == ["t4", "a100-80"]
    labels = [settings.product_label(gpu) for gpu in settings.gpus]
    assert labels == ["Tesla-T4", "NVIDIA-A100-80GB-PCIe"]


def test_paths_come_from_the_environment_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    """As every setting does."""
    text = '{"AppWrapper.workload.codeflare.dev": {"templates": ["/spec/components/*/template"]}}'
    monkeypatch.setenv("MEMGATE_ADMISSION_PATHS", text)
    shape = AdmissionSettings().admission_paths["AppWrapper.workload.codeflare.dev"]
    assert shape.templates == ("/spec/components/*/template",)


@pytest.mark.parametrize(
    ("timeout", "want_wait", "want_limit"),
    [
        ("10s", 5, 8.8),
        ("1s", 0.6, 0.7),
        (None, 5, 8.8),
        ("soon", 5, 8.8),
        ("0s", 0, 0.1),
    ],
)
def test_an_answer_comes_before_the_api_server_gives_up(
    timeout: str | None, want_wait: float, want_limit: float
) -> None:
    """Whatever the operator allows for."""
    budget = read_timeout(timeout, wait=5)
    assert budget.wait == pytest.approx(want_wait)
    assert budget.limit == pytest.approx(want_limit)
