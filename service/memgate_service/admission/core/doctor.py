"""What an operator may have set up wrongly: what was checked, and what to do about it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from memgate.client.clients import Client
from memgate.errors import MemgateError
from memgate.gpus import GpuRequest
from memgate.near_names import find_near


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was looked at."""

    about: str
    wrong: str = ""
    """What is wrong; empty if nothing is."""
    help: str = ""
    """What to do about it."""
    note: str = ""
    """What is right, and may not be what is wanted."""

    @property
    def line(self) -> str:
        """For people."""
        if not self.wrong:
            return f"note   {self.about}: {self.note}" if self.note else f"ok     {self.about}"
        return f"WRONG  {self.about}: {self.wrong}" + (f"; {self.help}" if self.help else "")


def try_out(about: str, do: Callable[[], str], help: str = "") -> Check:
    """Do something that returns what is wrong, or raises."""
    try:
        return Check(about=about, wrong=do(), help=help)
    except (MemgateError, OSError, ValueError) as error:
        said = getattr(error, "message", None) or getattr(error, "strerror", None) or str(error)
        return Check(about=about, wrong=said, help=help)


def check_server(client: Client) -> tuple[Check, frozenset[str]]:
    """Check that memgate answers, and takes the key; return the names of its GPUs as well."""
    names: set[str] = set()

    def ask() -> str:
        names.update(gpu.name for gpu in client.gpus())
        return ""

    help = "is the address right, does it run, and is the key valid (memgate keys list)?"
    return try_out("memgate answers, and takes the key", ask, help), frozenset(names)


def check_gpus(where: str, given: Iterable[str], known: Sequence[str] | frozenset[str]) -> Check:
    """Check the names of GPUs in an operator's table, or their sizes as JSON."""
    wrong = [said for name in dict.fromkeys(given) if (said := _wrong_gpu(name, known))]
    return Check(about=f"the GPUs of {where}", wrong="; ".join(wrong), help="see: memgate gpus")


def _wrong_gpu(name: str, known: Sequence[str] | frozenset[str]) -> str:
    if name.lstrip().startswith("{"):
        try:
            GpuRequest.model_validate_json(name)
        except ValueError:
            return f'{name[:60]} is not like {{"memory_bytes": N, "compute_capability": "8.6"}}'
        return ""
    if not known or name in known:
        return ""
    near = find_near(name, known)
    return f"there is no {name!r}" + (f", but {near[0]!r}" if near else "")


def check_policy(document: Callable[[], Any]) -> Check:
    """Check that a policy can be read."""

    def read() -> str:
        document()
        return ""

    return try_out("the policy", read, "memgate policy check FILE")
