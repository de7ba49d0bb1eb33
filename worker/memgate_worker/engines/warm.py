"""Engines that this process keeps: the second question does not wait for torch to be imported.

An engine is started when it is first used and ends with this process, or by ``close_engines``. It
answers one question at a time: threads wait for each other. A fork starts engines of its own.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from memgate.errors import MemgateError, ProcessLostError
from memgate.run_key import EngineIdentity
from memgate_worker.engines.identity import identify_engine
from memgate_worker.engines.registry import Engine, start_engine
from memgate_worker.runtimes.runtime import Runtime


class _Place:
    """A place for an engine, once it is started."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.engine: Engine | None = None
        #: identity of the runtime when the engine was started
        self.made_by: EngineIdentity | None = None

    def start(self, name: str, runtime: Runtime) -> Engine:
        """Return an engine for the runtime as it is now; the caller holds the lock."""
        made_by = identify_engine(runtime)
        if made_by != self.made_by:  # libraries, or cuDNN, were installed since it was started
            self.close()
        if self.engine is None:
            self.engine, self.made_by = start_engine(name, runtime), made_by
        return self.engine

    def close(self) -> None:
        """End the engine, if there is one; the caller holds the lock."""
        if self.engine is not None:
            self.engine.__exit__(None, None, None)
            self.engine = None


class _WarmEngines:
    """All engines of this process, by name and runtime."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._places: dict[tuple[str, Runtime], _Place] = {}

    @contextmanager
    def use(self, name: str, runtime: Runtime) -> Iterator[Engine]:
        with self._lock:
            place = self._places.setdefault((name, runtime), _Place())
        with place.lock:
            engine = place.start(name, runtime)
            try:
                yield engine
            except MemgateError as error:
                if isinstance(error, ProcessLostError):
                    place.close()
                raise
            except BaseException:  # interrupted: the next question would get this answer
                place.close()
                raise

    def close(self) -> None:
        with self._lock:
            places = [*self._places.values()]
        for place in places:
            # One in use belongs to a thread that this process does not wait for when it ends; the
            # engine's process ends with this one.
            if place.lock.acquire(blocking=False):
                try:
                    place.close()
                finally:
                    place.lock.release()


_engines = _WarmEngines()

#: engines of a parent process: not ours to use or end, and collecting them would be an error
_inherited: list[_WarmEngines] = []


def _forget() -> None:
    global _engines
    _inherited.append(_engines)
    _engines = _WarmEngines()


os.register_at_fork(after_in_child=_forget)


@contextmanager
def use_engine(name: str, runtime: Runtime) -> Iterator[Engine]:
    """Yield a warm engine; no other thread uses it in the meantime.

    Raises:
        InputError: if there is no such engine.
    """
    with _engines.use(name, runtime) as engine:
        yield engine


def close_engines() -> None:
    """End all engines that are not in use; they are started again when they are needed."""
    _engines.close()


atexit.register(close_engines)
