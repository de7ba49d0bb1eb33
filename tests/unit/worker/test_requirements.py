"""What pip says of a requirements file -> which torch it brings, and what is left out."""

from __future__ import annotations

import json
import os
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import pytest

from memgate.errors import InputError
from memgate_worker.runtimes.install import plan_requirements
from memgate_worker.runtimes.requirements import (
    Dependency,
    check_torch,
    cudnn_of,
    find_unwanted,
    name_for,
    needed_after_all,
    read_dependencies,
    read_report,
    read_requirements,
    write_placeholder,
)

OLD_STYLE = [
    "filelock",
    'nvidia-cublas-cu12 (==12.4.5.8) ; platform_system == "Linux"',
    'nvidia-cudnn-cu12 (==9.1.0.70) ; platform_system == "Linux"',
    'triton (==3.2.0) ; platform_system == "Linux"',
    "opt-einsum (>=3.3) ; extra == 'opt-einsum'",
]
NEW_STYLE = [
    'cuda-toolkit[cublas,cudart]==13.0.3; platform_system == "Linux"',
    'cuda-bindings<14,>=13.0.3; platform_system == "Linux"',
    'nvidia-cudnn-cu13==9.24.0.43; platform_system == "Linux"',
    'triton~=3.8.0; platform_system == "Linux"',
]


def _report(*packages: tuple[str, str, list[str]], named: str = "torch") -> str:
    def item(name: str, version: str, requires: list[str]) -> dict[str, Any]:
        metadata = {"name": name, "version": version, "requires_dist": requires}
        return {"requested": name in named.split(), "metadata": metadata}

    return json.dumps({"version": "1", "install": [item(*package) for package in packages]})


@pytest.mark.parametrize(
    ("requires", "want"),
    [
        (
            OLD_STYLE,
            {
                "nvidia-cublas-cu12": "12.4.5.8",
                "nvidia-cudnn-cu12": "9.1.0.70",
                "triton": "3.2.0",
            },
        ),
        (
            NEW_STYLE,
            {
                "cuda-toolkit": "13.0.3",
                "cuda-bindings": "13.0.3",
                "nvidia-cudnn-cu13": "9.24.0.43",
                "triton": "3.8.0",
            },
        ),
    ],
    ids=["torch 2.6", "torch 2.14"],
)
def test_nvidias_libraries_and_triton_are_left_out(
    requires: list[str], want: dict[str, str]
) -> None:
    """In versions that torch is content with, however its package writes them."""
    left_out = read_report(_report(("torch", "2.6.0", requires))).left_out()

    assert {name: need.lowest for name, need in left_out.items()} == want


def test_triton_stays_where_others_ask_for_it() -> None:
    """The file itself, or a package besides torch."""
    torch = ("torch", "2.6.0", OLD_STYLE)
    named = read_report(_report(torch, ("triton", "3.2.0", []), named="torch triton"))
    needed = read_report(_report(torch, ("Liger_Kernel", "0.5.0", ["torch", "triton>=2.3"])))

    assert "triton" not in named.left_out()
    assert "triton" not in needed.left_out()
    assert "nvidia-cublas-cu12" in needed.left_out()


def test_a_frozen_environment_names_nvidias_libraries_itself() -> None:
    """What ``pip freeze`` writes: they are left out all the same, their relatives are not."""
    packages = [
        ("torch", "2.14.1", NEW_STYLE),
        ("nvidia-cublas", "13.1.0.3", []),
        ("nvidia-ml-py", "13.580.82", []),
        ("nvidia-dali-cuda120", "1.51.2", []),
    ]
    named = " ".join(name for name, *_ in packages)
    left_out = read_report(_report(*packages, named=named)).left_out()

    assert left_out["nvidia-cublas"].lowest == "13.1.0.3"
    assert not {"nvidia-ml-py", "nvidia-dali-cuda120", "torch"} & left_out.keys()


@pytest.mark.parametrize(
    ("torch", "pin", "want"),
    [
        ("2.14.1", "torch (==2.6.0)", False),
        ("2.6.0+cu124", "torch==2.6.0", True),
        ("2.6.0", "torch (>=2.0)", True),
        ("2.6.0", "torch", True),
        ("2.14.1", "torch<2.7,>=2.0", False),
        ("2.6.0", "torch~=2.4.0", False),
    ],
)
def test_a_library_may_want_another_torch(torch: str, pin: str, want: bool) -> None:
    """Then pip is asked again, and chooses one for both."""
    chosen = read_report(_report(("torch", torch, []), ("torchvision", "0.21.0", [pin])))

    assert chosen.is_settled is want


@pytest.mark.parametrize(
    ("version", "want"),
    [
        (None, r"brings no torch.*torch 2\.3 to 2\.14"),
        ("1.13.1", r"brings torch 1\.13\.1, and runtimes are made for torch 2\.3 to 2\.14"),
        ("2.2.2+cu121", r"brings torch 2\.2\.2\+cu121"),
        ("2.6.0+cpu", "not built for CUDA"),
        ("2.6.0+rocm6.2", "not built for CUDA"),
    ],
)
def test_a_torch_that_cannot_be_used_is_refused(version: str | None, want: str) -> None:
    """With its version and the range."""
    with pytest.raises(InputError, match=want):
        check_torch(version, Path("requirements.txt"))


def test_a_torch_that_was_never_tried_is_warned_of() -> None:
    """It is not refused: the answer of a run is checked anyway."""
    path = Path("requirements.txt")

    assert [check_torch(known, path) for known in ("2.3.0", "2.14.1+cu130")] == [None, None]
    assert "torch 2.15.0 is newer than 2.14" in str(check_torch("2.15.0", path))
    assert "newer" in str(check_torch("3.0.0", path))


@pytest.mark.parametrize(
    ("requires", "want"),
    [(OLD_STYLE, None), (NEW_STYLE, "nvidia-cudnn-cu13==9.24.0.43"), ([], None)],
)
def test_a_cudnn_that_can_plan_is_offered(requires: list[str], want: str | None) -> None:
    """Of the version that torch pins."""
    assert cudnn_of(read_dependencies(requires)) == want


def test_what_was_left_out_too_eagerly_is_found(tmp_path: Path) -> None:
    """A package that another one brought may need Triton, too."""
    left_out = read_report(_report(("torch", "2.6.0", OLD_STYLE))).left_out()
    for name, needs in (("torch", "triton==3.2.0"), ("kernels", "triton"), ("other", "numpy")):
        home = tmp_path / f"{name}-1.0.dist-info"
        home.mkdir()
        text = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\nRequires-Dist: {needs}\n"
        (home / "METADATA").write_text(text)
    found = list(distributions(path=[str(tmp_path)]))

    assert find_unwanted(left_out, found) == []
    for need in (Dependency(name="nvidia-cufft", versions="==12.0"), left_out["triton"]):
        write_placeholder(tmp_path, need)
    more = list(distributions(path=[str(tmp_path)]))
    assert find_unwanted(left_out, more) == ["nvidia-cufft", "triton"]
    wanted = Dependency(name="triton", versions="==3.2.0")
    assert needed_after_all(left_out, found) == [wanted]
    assert needed_after_all(left_out, [one for one in found if one.name != "kernels"]) == []


def test_a_placeholder_looks_installed(tmp_path: Path) -> None:
    """It lists its own files, so pip removes it like any other package."""
    write_placeholder(tmp_path, Dependency(name="nvidia-nccl-cu12", versions="==2.21.5"))

    (found,) = distributions(path=[str(tmp_path)])
    assert (found.name, found.version) == ("nvidia-nccl-cu12", "2.21.5")
    assert {Path(str(file)).name for file in found.files or ()} == {
        *("METADATA", "INSTALLER", "RECORD"),
    }


def test_a_file_is_identified_by_all_that_it_says(tmp_path: Path) -> None:
    """Also by the files that it names; where it is makes no difference."""
    first, copy, base = (tmp_path / name for name in ("a.txt", "b.txt", "base.txt"))
    base.write_text("torch==2.6.0\n")
    for path in (first, copy):
        path.write_text("-r base.txt\n-c missing.txt\n--requirement=a.txt\n")
    before = read_requirements(first).digest

    assert read_requirements(copy).digest != ""
    base.write_text("torch==2.7.0\n")
    assert read_requirements(first).digest != before
    base.write_text("torch==2.6.0\n")
    assert read_requirements(first).digest == before


@pytest.mark.parametrize("content", [None, b"\xff\xfe\x00"], ids=["missing", "not text"])
def test_a_file_that_cannot_be_read_is_the_callers(tmp_path: Path, content: bytes | None) -> None:
    """One sentence, with its name."""
    path = tmp_path / "requirements.txt"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(InputError, match=r"--requirements .*requirements\.txt cannot be read"):
        read_requirements(path)


def test_a_runtime_is_named_after_its_file() -> None:
    """Unless a name is given."""
    assert name_for(Path("/jobs/my job (1).txt"), None) == "my-job-1"
    assert name_for(Path("requirements.txt"), "lab_2.6") == "lab_2.6"
    for bad in ("", "../up", "a b", "-x", "x" * 65):
        with pytest.raises(InputError, match="a runtime's name has letters"):
            name_for(Path("requirements.txt"), bad)


def test_a_name_belongs_to_one_file(tmp_path: Path) -> None:
    """Neither one of ours nor another file's runtime is replaced."""
    home = tmp_path / "home"
    path = tmp_path / "requirements.txt"
    path.write_text("torch==2.6.0\n")
    planned = plan_requirements(path, "lab", home)
    assert (planned.name, planned.state, planned.origin) == ("lab", "absent", str(path))

    with pytest.raises(InputError, match=r"'torch-2\.6' is taken: .* from memgate; choose"):
        plan_requirements(path, "torch-2.6", home)

    home.mkdir()
    (home / "lab.toml").write_text(
        'description = "x"\nrequirements = "/elsewhere/r.txt"\nrequirements_digest = "0"\n'
    )
    with pytest.raises(InputError, match=r"'lab' is taken: .* from /elsewhere/r\.txt"):
        plan_requirements(path, "lab", home)


@pytest.mark.parametrize("text", ["", "torch\n-r requirements.txt\n"], ids=["itself", "by another"])
def test_a_pipe_is_not_waited_for(tmp_path: Path, text: str) -> None:
    """pip would; a device may never end."""
    pipe, other = tmp_path / "requirements.txt", tmp_path / "other.txt"
    os.mkfifo(pipe)
    other.write_text(text)

    with pytest.raises(InputError, match=r"requirements\.txt cannot be read: this is a named pipe"):
        read_requirements(other if text else pipe)
