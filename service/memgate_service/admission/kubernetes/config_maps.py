"""Job specs in ConfigMaps -> their texts, for the webhooks and for the controllers.

If a ConfigMap, or a key in it, does not exist, that is the mistake of the author who named it. If
the API server does not answer, or does not let us read, it is not: then there is no answer yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from threading import Lock

from cachetools import TTLCache

from memgate.errors import InputError
from memgate_service.admission.kubernetes.cluster import Cluster, ClusterError
from memgate_service.admission.kubernetes.objects import JOB_CONFIGMAP

#: for how long a text is cached
_CACHED_SECONDS = 5.0

#: what is read if no key is named
_DEFAULT_KEY = "job"


class ConfigMaps:
    """The ConfigMaps of a cluster. Threads may share it."""

    def __init__(self, connect: Callable[[], Cluster]) -> None:
        """Connect when the first ConfigMap is needed: most clusters have none for us."""
        self._connect = connect
        self._cluster: Cluster | None = None
        self._lock = Lock()
        self._cache: TTLCache[tuple[str, str], str] = TTLCache(1000, _CACHED_SECONDS)

    def read(self, namespace: str, references: Iterable[str]) -> dict[str, str]:
        """Return the texts that references (``NAME`` or ``NAME/KEY``) mean in a namespace.

        Raises:
            InputError: if there is no such ConfigMap, or it has no such key.
            ClusterError: if the API server does not answer.
        """
        return {reference: self._text(namespace, reference) for reference in references}

    def _text(self, namespace: str, reference: str) -> str:
        with self._lock:
            text = self._cache.get((namespace, reference))
        if text is None:
            text = self._read(namespace, reference)
            with self._lock:
                self._cache[namespace, reference] = text
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
                self._cluster = self._connect()
            return self._cluster
