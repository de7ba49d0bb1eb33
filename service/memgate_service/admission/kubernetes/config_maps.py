"""Job specs that stand in ConfigMaps -> their texts, each remembered for a few seconds."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from threading import Lock

import anyio
import anyio.to_thread
from cachetools import TTLCache

from memgate.errors import InputError
from memgate_service.admission.kubernetes.cluster import Cluster, ClusterError
from memgate_service.admission.kubernetes.objects import JOB_CONFIGMAP

#: how old what we know of a ConfigMap may be
_REMEMBERED_SECONDS = 5.0

#: what is read if no key is named
_DEFAULT_KEY = "job"


class ConfigMaps:
    """The ConfigMaps of a cluster; connected to when the first is wanted."""

    def __init__(self, kubeconfig: Path | None) -> None:
        self._kubeconfig = kubeconfig
        self._cluster: Cluster | None = None
        self._lock = Lock()
        self._known: TTLCache[tuple[str, str], str] = TTLCache(1000, _REMEMBERED_SECONDS)

    async def read(
        self, namespace: str, references: Iterable[str], seconds: float
    ) -> dict[str, str]:
        """Return the texts that references (``NAME`` or ``NAME/KEY``) mean, in a namespace.

        Raises:
            InputError: if there is no such ConfigMap, or nothing in it by this key.
            ClusterError: if it cannot be found out in time.
        """
        texts: dict[str, str] = {}
        try:
            with anyio.fail_after(seconds):
                for reference in references:
                    texts[reference] = await self._text(namespace, reference)
        except TimeoutError:
            raise ClusterError("Kubernetes' API server does not answer") from None
        return texts

    async def _text(self, namespace: str, reference: str) -> str:
        text = self._known.get((namespace, reference))
        if text is None:
            text = await anyio.to_thread.run_sync(
                self._read, namespace, reference, abandon_on_cancel=True
            )
            self._known[namespace, reference] = text
        return text

    def _read(self, namespace: str, reference: str) -> str:
        name, _, key = reference.partition("/")
        key = key or _DEFAULT_KEY
        try:
            data = self._connected().read_config_map(namespace, name)
        except ClusterError as error:
            if error.status == 404:
                raise InputError(
                    f"annotation {JOB_CONFIGMAP}: there is no ConfigMap {name!r} in {namespace!r}"
                ) from None
            raise
        if key not in data:
            keys = ", ".join(sorted(data)) or "nothing"
            raise InputError(
                f"annotation {JOB_CONFIGMAP}: ConfigMap {name!r} has no {key!r}, it has: {keys}"
            )
        return data[key]

    def _connected(self) -> Cluster:
        with self._lock:
            if self._cluster is None:
                self._cluster = Cluster.connect(self._kubeconfig)
            return self._cluster
