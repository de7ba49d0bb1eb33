"""Pod Security's ``restricted`` standard, as Kubernetes documents it, checked on a pod's spec.

Written from the standard's own text, not from the code that makes pods. It returns what is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_VOLUMES = {
    *("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral"),
    *("persistentVolumeClaim", "projected", "secret"),
}
_SECCOMP = {"RuntimeDefault", "Localhost"}


def find_violations(spec: dict[str, Any]) -> list[str]:
    """Return what the standard forbids in a pod's spec; empty if it may run."""
    return [*_of_pod(spec), *(one for c in _containers(spec) for one in _of_container(c, spec))]


def _containers(spec: dict[str, Any]) -> list[dict[str, Any]]:
    names = ("containers", "initContainers", "ephemeralContainers")
    return [container for name in names for container in spec.get(name, [])]


def _of_pod(spec: dict[str, Any]) -> Iterator[str]:
    for name in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(name):
            yield name
    for volume in spec.get("volumes", []):
        for kind in set(volume) - {"name"} - _VOLUMES:
            yield f"volume {kind}"
    security = spec.get("securityContext", {})
    for name in ("sysctls", "seLinuxOptions", "windowsOptions", "appArmorProfile"):
        if security.get(name):
            yield f"securityContext.{name}"
    if security.get("runAsUser") == 0:
        yield "runAsUser 0"


def _of_container(container: dict[str, Any], spec: dict[str, Any]) -> Iterator[str]:
    name, own = container["name"], container.get("securityContext", {})
    shared = spec.get("securityContext", {})
    if own.get("privileged"):
        yield f"{name}: privileged"
    if own.get("allowPrivilegeEscalation") is not False:
        yield f"{name}: allowPrivilegeEscalation"
    if own.get("capabilities", {}).get("drop") != ["ALL"]:
        yield f"{name}: capabilities.drop"
    if set(own.get("capabilities", {}).get("add", [])) - {"NET_BIND_SERVICE"}:
        yield f"{name}: capabilities.add"
    if own.get("runAsNonRoot", shared.get("runAsNonRoot")) is not True:
        yield f"{name}: runAsNonRoot"
    if own.get("runAsUser") == 0:
        yield f"{name}: runAsUser 0"
    seccomp = own.get("seccompProfile", shared.get("seccompProfile", {}))
    if seccomp.get("type") not in _SECCOMP:
        yield f"{name}: seccompProfile"
    if own.get("procMount", "Default") != "Default":
        yield f"{name}: procMount"
    if any(port.get("hostPort") for port in container.get("ports", [])):
        yield f"{name}: hostPort"
