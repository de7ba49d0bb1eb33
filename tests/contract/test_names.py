"""One word for one idea: a name of a class means one thing in all three packages."""

from __future__ import annotations

import ast

from tests.contract.test_imports import PACKAGES, ROOT, list_modules


def test_no_two_classes_share_a_name() -> None:
    """A reader who searches for a class finds it; private ones are their module's own business."""
    defined: dict[str, list[str]] = {}
    for package in PACKAGES:
        for path in list_modules(package):
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    defined.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    assert len(defined) > 200

    assert not {name: paths for name, paths in defined.items() if len(paths) > 1}
