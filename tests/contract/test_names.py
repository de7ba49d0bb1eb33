"""One word for one idea: a name of a class means one thing in all three packages."""

from __future__ import annotations

import ast

from tests.contract.test_imports import PACKAGES, ROOT, list_modules

#: still defined twice; this list only ever shrinks
STILL_SHARED = {
    "Place",  # where pods may run, and where a certificate is kept
    "UnknownGpuError",  # of the catalogue, and of a label of a node
}


def test_no_two_classes_share_a_name() -> None:
    """A reader who searches for a class finds it; private ones are their module's own business."""
    defined: dict[str, list[str]] = {}
    for package in PACKAGES:
        for path in list_modules(package):
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    defined.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    assert len(defined) > 200
    shared = {name: paths for name, paths in defined.items() if len(paths) > 1}

    assert set(shared) == STILL_SHARED, shared
