"""The Helm chart, rendered by a real helm: for tests, and for the plain manifests.

``python -m tests.chart`` (``make manifests``) renders ``deploy/kubernetes/manifests/memgate.yaml``
anew, from the values beside it, and copies the alarms into the chart, where helm can read them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from tests.parts import find_part

ROOT = Path(__file__).parents[1]
CHART = ROOT / "deploy" / "kubernetes" / "chart"
MANIFESTS = ROOT / "deploy" / "kubernetes" / "manifests"
ALARMS = ROOT / "deploy" / "prometheus" / "memgate.rules.yml"
ALARMS_IN_CHART = CHART / "files" / "memgate.rules.yml"

#: what the plain manifests are rendered with
NAMESPACE = "memgate"
MANIFEST_VALUES = MANIFESTS / "values.yaml"

_HEAD = """\
# memgate on Kubernetes, without helm: docs/kubernetes.md tells what to do with this.
# Rendered from ../chart with values.yaml beside this file by `make manifests`: change those.
"""


def helm(*arguments: str | Path, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run helm.

    Raises:
        AssertionError: it failed, and ``check`` was not put off; with what it said.
    """
    program = find_part("helm")
    assert program is not None, "helm is not here: make parts"
    ran = subprocess.run(
        [program, *arguments], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    assert not check or ran.returncode == 0, ran.stderr
    return ran


def render_text(*arguments: str | Path, namespace: str = NAMESPACE, name: str = "memgate") -> str:
    """Render the chart; arguments are those of ``helm template``."""
    return helm("template", name, CHART, f"--namespace={namespace}", *arguments).stdout


def render(values: dict[str, Any] | None = None, *arguments: str, **more: str) -> list[Any]:
    """Render the chart with values; return its objects."""
    sets = [f"--set-json={key}={json.dumps(value)}" for key, value in (values or {}).items()]
    text = render_text(*sets, *arguments, **more)
    return [found for found in yaml.safe_load_all(text) if found]


def render_manifests() -> str:
    """Render the plain manifests."""
    text = render_text("--values", MANIFEST_VALUES, "--skip-tests")
    return _HEAD + "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def main() -> None:
    """Write what is rendered from others."""
    if find_part("helm") is None:
        sys.exit("helm is not here: make parts")
    ALARMS_IN_CHART.write_bytes(ALARMS.read_bytes())
    (MANIFESTS / "memgate.yaml").write_text(render_manifests())


if __name__ == "__main__":
    main()
