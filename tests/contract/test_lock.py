"""constraints.txt: every file that `make install` may fetch is known by its hash."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import distributions

from tests.running import ROOT

#: a package, its version, its marker, its hashes
_LOCKED = re.compile(
    r"^([\w.-]+)==([\w.!+]+)(?: ;.*)?((?: \\\n    --hash=sha256:[0-9a-f]{64})+)$", re.M
)


def _read_lock() -> dict[str, str]:
    text = (ROOT / "constraints.txt").read_text()
    locked = {_canonical(name): version for name, version, _ in _LOCKED.findall(text)}
    assert _LOCKED.sub("", text).strip() == "", "a line without a version or a hash"
    return locked


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_every_pin_has_hashes() -> None:
    """A version alone says what a file is called, not what is in it."""
    assert len(_read_lock()) > 100


def test_what_is_installed_here_is_locked() -> None:
    """What pip brought without a line in constraints.txt, it brought unchecked."""
    locked = _read_lock()
    # memgate itself, and what a new environment comes with
    installed = {
        _canonical(package.name): package.version
        for package in distributions()
        if package.name not in ("memgate", "setuptools")
    }

    assert {name: locked.get(name) for name in installed} == installed


def test_the_lock_agrees_with_pyproject() -> None:
    """Its exact versions are those of the lock, and what builds memgate is among them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    groups = project["dependency-groups"]
    exact = [pin for group in groups.values() for pin in group if isinstance(pin, str)]
    locked = _read_lock()

    assert {
        f"{_canonical(name)}=={locked[_canonical(name)]}" for name, _ in map(_split, exact)
    } == {f"{_canonical(name)}=={version}" for name, version in map(_split, exact)}
    needed = {re.split(r"[<>=]", line)[0] for line in project["build-system"]["requires"]}
    assert {"pip", *needed} <= {_split(pin)[0] for pin in groups["build"]}


def _split(pin: str) -> tuple[str, str]:
    name, _, version = pin.partition("==")
    return name, version
