"""``python -m tests.bench.flooder URL KEY CONNECTIONS``: one caller that asks as fast as it can.

Each connection sends the next request when the last one is answered, whatever the answer is: a new
job that takes as long as one may, an upload, a known question. It goes on until its standard input
is closed, and prints how often it got which status. A process of its own, so that what it costs is
not in the figures of who measures.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import sys
from collections import Counter
from collections.abc import Iterator
from urllib.parse import urlsplit

from tests.builders import TINY_TRACES
from tests.conftest import DATA

#: never done within a minute: six million layers, there and back
SLOW_JOB = {
    "model": {
        "source": "transformers",
        "class": "GPT2LMHeadModel",
        "config": {"n_layer": 96, "n_embd": 768, "n_head": 12},
    },
    "input": {"sequence_length": 64},
    "gradient_accumulation_steps": 1024,
    "iterations": 64,
}
KNOWN_JOB = {
    "model": {"source": "torchvision", "name": "resnet18"},
    "input": {"shape": [3, 32, 32]},
    "batch_size": 7,
}
_TRACE = DATA / "traces" / f"{TINY_TRACES[0]}.json.gz"


def _question(job: dict[str, object]) -> tuple[str, bytes]:
    return "application/json", json.dumps({"job": job, "gpu": "rtx-3060"}).encode()


def _upload(trace: bytes) -> tuple[str, bytes]:
    mark = "b0undary"
    # one byte differs each time (gzip's modification time), so that it is another file
    other = trace[:4] + random.randbytes(4) + trace[8:]
    parts = [
        f'--{mark}\r\nContent-Disposition: form-data; name="request"\r\n\r\n'.encode(),
        b'{"gpu": "rtx-3060"}\r\n',
        f'--{mark}\r\nContent-Disposition: form-data; name="trace"; filename="t"\r\n\r\n'.encode(),
        other,
        f"\r\n--{mark}--\r\n".encode(),
    ]
    return f"multipart/form-data; boundary={mark}", b"".join(parts)


def make_requests() -> Iterator[tuple[str, bytes]]:
    """Yield content types and bodies without end."""
    trace = _TRACE.read_bytes()
    for number in itertools.count(1):
        yield _question(SLOW_JOB | {"batch_size": number})
        yield _upload(trace)
        yield _question(KNOWN_JOB)


class Flooder:
    """Many connections of one key."""

    def __init__(self, url: str, key: str) -> None:
        self._host, self._port = urlsplit(url).hostname, urlsplit(url).port
        self._key = key
        self._requests = make_requests()
        self.statuses: Counter[int] = Counter()

    async def flood(self) -> None:
        """Ask and ask, on one connection after the other."""
        while True:
            reader, writer = await asyncio.open_connection(self._host, self._port)
            try:
                while await self._ask(reader, writer):
                    pass
            except (OSError, asyncio.IncompleteReadError):
                self.statuses[0] += 1
            finally:
                writer.close()

    async def _ask(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        kind, body = next(self._requests)
        head = (
            f"POST /estimate HTTP/1.1\r\nHost: {self._host}\r\n"
            f"Authorization: Bearer {self._key}\r\n"
            f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        await writer.drain()
        answer = await reader.readuntil(b"\r\n\r\n")
        self.statuses[int(answer.split(b" ", 2)[1])] += 1
        headers = answer.lower()
        length = int(headers.partition(b"content-length:")[2].partition(b"\r\n")[0])
        await reader.readexactly(length)
        return b"connection: close" not in headers


async def main(url: str, key: str, connections: int) -> None:
    """Flood until the standard input is closed."""
    flooder = Flooder(url, key)
    tasks = [asyncio.create_task(flooder.flood()) for _ in range(connections)]
    await asyncio.to_thread(sys.stdin.read)
    for task in tasks:
        task.cancel()
    print(json.dumps(flooder.statuses))  # noqa: T201


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
