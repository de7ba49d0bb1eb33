"""Which image a tag means: by what has run."""

from __future__ import annotations

from typing import Any

from memgate_service.admission.kubernetes.images import find_images, find_run_image

_OLD, _NEW = (f"team/train@sha256:{letter * 64}" for letter in "ab")


def _pod(image_id: str, at: str = "2026-05-01T10:00:00Z", image: str = "team/train:1") -> Any:
    status = {"name": "train", "image": "docker.io/team/train:1", "imageID": image_id}
    return {
        "spec": {"containers": [{"name": "train", "image": image}]},
        "status": {"startTime": at, "containerStatuses": [status]},
    }


def test_a_tag_means_what_ran_last() -> None:
    """Whatever the order in which pods are listed."""
    old, new = _pod(_OLD), _pod(_NEW, "2026-05-02T10:00:00Z")
    assert find_images([new, old]) == {"team/train:1": _NEW}


def test_what_cannot_be_pulled_is_not_taken() -> None:
    """An id without a name, a pod that has not run, an image that is written by its digest."""
    assert find_images([_pod("sha256:" + "a" * 64), _pod(""), {"spec": {}}]) == {}
    assert find_images([_pod(_OLD, image=_OLD)]) == {}


def test_older_runtimes_write_more_before_it() -> None:
    """Which no kubelet would take."""
    assert find_run_image(_pod(f"docker-pullable://{_OLD}"), "train") == _OLD
    assert find_run_image(_pod(_OLD), "another") == ""
