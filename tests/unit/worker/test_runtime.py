"""Runtimes by name, and the parts of the stand-ins that need no compiler."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

import memgate_worker
from memgate.errors import InputError, OperatorError, RuntimeMissingError
from memgate_worker.runtimes.install import install
from memgate_worker.runtimes.runtime import DEFAULT_RUNTIME, find_runtime, read_runtimes
from memgate_worker.standins.generated import generate_source, version_script
from memgate_worker.standins.imports import Symbol


def test_there_are_files_for_the_default_and_for_the_measured_runs() -> None:
    """Each pins what decides memory."""
    runtimes = read_runtimes()

    assert DEFAULT_RUNTIME in runtimes
    assert "torch==2.6.0" in runtimes["torch-2.6"].bare
    for runtime in runtimes.values():
        assert all("==" in package for package in runtime.bare)


def test_a_runtime_that_is_not_built_names_the_command_that_builds_it(tmp_path: Path) -> None:
    """The next step is in the message."""
    with pytest.raises(RuntimeMissingError, match=r"memgate runtimes install torch-2\.6"):
        find_runtime("torch-2.6", home=tmp_path)


def test_an_unknown_runtime_is_answered_with_the_known_ones(tmp_path: Path) -> None:
    """Names come from files; a wrong one is the caller's mistake, not the operator's."""
    wanted = r"'torch-9': there is no such runtime; there are: torch-2\.14, torch"
    with pytest.raises(InputError, match=wanted) as raised:
        find_runtime("torch-9", home=tmp_path)

    assert raised.value.code == "BAD_INPUT"


def test_a_home_that_cannot_be_searched_has_no_runtimes(tmp_path: Path) -> None:
    """As that of another user: ``HOME`` is often root's in a container."""
    home = tmp_path / ("x" * 300)  # an error for every user, root too

    assert not any(runtime.is_installed for runtime in read_runtimes(home).values())


def test_a_cudnn_counts_only_in_the_version_that_is_named(tmp_path: Path) -> None:
    """Another version chooses other plans."""
    runtime = read_runtimes(tmp_path)["torch-2.14"]
    assert not runtime.has_cudnn

    runtime.cudnn_dir.mkdir(parents=True)
    runtime.cudnn_stamp.write_text("nvidia-cudnn-cu13==9.0.0")
    assert not runtime.has_cudnn

    runtime.cudnn_stamp.write_text(str(runtime.cudnn))
    assert runtime.has_cudnn


def test_a_runtime_without_a_cudnn_says_so(tmp_path: Path) -> None:
    """Nothing is downloaded."""
    with pytest.raises(InputError, match=r"'torch-2\.6' names no cuDNN that can plan"):
        install(read_runtimes(tmp_path)["torch-2.6"], with_cudnn=True)


def test_a_call_that_nobody_modelled_is_refused_by_name() -> None:
    """Nothing is silently wrong: only listed calls are allowed to do nothing."""
    source = generate_source(
        "libcusolver",
        [Symbol("cusolverDnSgetrf", "", False), Symbol("someTable", "", True)],
    )

    assert 'memgate_phantom_refuse("cusolverDnSgetrf"' in source
    assert "char someTable[4096]" in source


def test_symbols_have_the_versions_they_are_asked_for_by() -> None:
    """The loader would warn otherwise."""
    script = version_script({"cudaMalloc"}, [Symbol("cudaFree", "libcudart.so.13", False)])

    assert script.startswith("libcudart.so.13 { global: cudaFree; cudaMalloc;")
    assert "local: *" in script


def test_another_platform_is_told_what_works_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine says what it needs; setting up goes on without it."""
    monkeypatch.setattr(platform, "machine", lambda: "arm64")

    with pytest.raises(RuntimeMissingError, match=r"needs Linux on x86_64, and this is Linux"):
        find_runtime(None)


def test_an_operators_own_file_is_a_runtime(tmp_path: Path) -> None:
    """It lies where runtimes are installed: what memgate itself ships is not to be changed."""
    ours = (Path(memgate_worker.__file__).parent / "runtimes" / "torch-2.6.toml").read_text()
    (tmp_path / "lab.toml").write_text(ours)

    found = read_runtimes(tmp_path)

    assert set(found) == {*read_runtimes(tmp_path / "empty"), "lab"}
    assert found["lab"].home == tmp_path / "lab"
    assert found["lab"].bare == found["torch-2.6"].bare


@pytest.mark.parametrize(
    ("name", "text", "want_message"),
    [
        ("torch-2.6", "", "memgate has a runtime of this name; rename the file"),
        ("lab", "bare =", "not a runtime file: Invalid value"),
        ("lab", 'description = "x"', "a runtime file must say 'bare'"),
    ],
)
def test_a_wrong_file_of_the_operators_is_named(
    tmp_path: Path, name: str, text: str, want_message: str
) -> None:
    """With what is wrong in it; it is for the operator to mend, not for callers."""
    (tmp_path / f"{name}.toml").write_text(text)

    with pytest.raises(OperatorError) as raised:
        read_runtimes(tmp_path)

    assert raised.value.message.startswith(f"{tmp_path / name}.toml: {want_message}")
