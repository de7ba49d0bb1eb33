"""Clients that mean harm: refused in bounded time and memory, over a real socket."""

from __future__ import annotations

import gzip
import io
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from memgate.contract import Work, WorkKind
from memgate.errors import InputError
from memgate.units import MIB
from memgate_worker.answers import EngineAnswerer
from memgate_worker.queue.client import QueueClient
from memgate_worker.settings import WorkerSettings
from tests.integration.running import Running, hear, running
from tests.valkey import running_valkey

_MAX_UPLOAD_BYTES = 16 * MIB
_BODY_SECONDS = 3.0

#: the service may take so much memory, in units of the upload limit, beyond what it has at rest
_MAX_RATIO = 3.0

#: a busy machine is no bug, a client that is waited for without end is
_PATIENCE_SECONDS = 60.0

_HOST = b"Host: x\r\n"
_JSON = b"Content-Type: application/json\r\n"
_FORM = b"Content-Type: multipart/form-data; boundary=b\r\n"
_CHUNKED = b"Transfer-Encoding: chunked\r\n"
_ASKED = b'--b\r\nContent-Disposition: form-data; name="request"\r\n\r\n{"gpu": "t4"}\r\n'
_FILE = b'--b\r\nContent-Disposition: form-data; name="trace"; filename="t"\r\n\r\n'


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Run a service with small limits; after all that it must be well, and not have grown."""
    log = tmp_path_factory.mktemp("hostile") / "log"
    settings = {"max_upload_bytes": _MAX_UPLOAD_BYTES, "body_timeout_seconds": _BODY_SECONDS}
    with running_valkey() as url, running(url, log, **settings) as made:
        made.say(_post("/estimate", _JSON, b"{}"))
        at_rest = made.peak_bytes()
        yield made
        assert (made.peak_bytes() - at_rest) / _MAX_UPLOAD_BYTES < _MAX_RATIO
        assert made.say(_get("/healthz")).startswith(b"HTTP/1.1 200")
        assert '"status": 5' not in log.read_text()


def _get(path: str, headers: bytes = b"") -> bytes:
    return f"GET {path} HTTP/1.1\r\n".encode() + _HOST + headers + b"Connection: close\r\n\r\n"


def _head(path: str, headers: bytes) -> bytes:
    return f"POST {path} HTTP/1.1\r\n".encode() + _HOST + headers


def _post(path: str, headers: bytes, body: bytes) -> bytes:
    length = f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode()
    return _head(path, headers) + length + body


def _code(answer: bytes) -> tuple[int, str]:
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["code"]


def _chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def test_a_body_said_to_be_huge_is_refused_before_it_comes(service: Running) -> None:
    """The answer does not wait for a terabyte."""
    head = _head("/estimate", _JSON + b"Expect: 100-continue\r\n")
    answer = service.say(head + b"Content-Length: 1000000000000\r\n\r\n")

    assert _code(answer) == (413, "TOO_LARGE")


def test_chunks_beyond_the_limit_are_refused(service: Running) -> None:
    """Without a length there is still an end."""
    pieces = [_chunk(b"x" * MIB)] * 64
    answer = service.say(_head("/estimate", _FORM + _CHUNKED) + b"\r\n", _chunk(_FILE), *pieces)

    assert _code(answer) == (413, "TOO_LARGE")


def test_a_client_that_sends_a_byte_a_second_is_not_waited_for(service: Running) -> None:
    """408 within the time that a body may take."""
    start = time.monotonic()
    with service.connect() as connection:
        connection.sendall(_head("/estimate", _JSON) + b"Content-Length: 1000\r\n\r\n")
        connection.settimeout(1.0)
        answer = b""
        while not answer and time.monotonic() - start < _PATIENCE_SECONDS:
            connection.sendall(b" ")
            try:
                answer = connection.recv(65536)
            except TimeoutError:
                continue
        connection.settimeout(_PATIENCE_SECONDS)
        answer += hear(connection)

    assert _code(answer) == (408, "TOO_SLOW")
    assert time.monotonic() - start >= _BODY_SECONDS * 0.9


@pytest.mark.parametrize("sent", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: x\r\nX-A: b"])
def test_a_head_that_never_ends_is_not_waited_for(service: Running, sent: bytes) -> None:
    """Neither is a connection on which nothing is said."""
    assert _code(service.say(sent)) == (408, "TOO_SLOW")


@pytest.mark.parametrize(
    "head",
    [
        b"GET /healthz HTTP/1.1\r\nX-A: " + b"a" * 8 * MIB,
        b"GET /healthz HTTP/1.1\r\n" + b"X-A: b\r\n" * MIB,
        b"GET /" + b"a" * 8 * MIB,
        _get("/healthz", b"X-A: " + b"a" * 70_000 + b"\r\n"),
    ],
    ids=["a-long-header", "many-headers", "a-long-path", "whole"],
)
def test_a_huge_head_is_refused(service: Running, head: bytes) -> None:
    """431, or at least no connection any more; it is not kept."""
    answer = service.say(head)

    # A client that goes on sending after we hung up may lose the answer: that is TCP.
    assert not answer or _code(answer) == (431, "HEADERS_TOO_LARGE")


@pytest.mark.parametrize(
    "request_",
    [
        b"\x16\x03\x01\x02\x00\x01",
        b"GET / HTTP/9.9\r\n\r\n",
        _head("/estimate", _JSON) + b"Content-Length: -1\r\n\r\n",
        _head("/estimate", _JSON) + b"Content-Length: 9\r\nContent-Length: 8\r\n\r\n123456789",
        _head("/estimate", _JSON + _CHUNKED) + b"\r\nzz\r\n",
    ],
    ids=["tls", "version", "length", "lengths", "chunk"],
)
def test_what_is_no_http_is_400(service: Running, request_: bytes) -> None:
    """A problem document, and the connection ends."""
    assert _code(service.say(request_)) == (400, "BAD_REQUEST")


def test_a_length_that_lies_is_no_way_in(service: Running) -> None:
    """Less than was said: waited for, then 408. More: the rest is no request, and 400."""
    assert _code(service.say(_head("/fit", _JSON) + b"Content-Length: 9\r\n\r\n{}")) == (
        408,
        "TOO_SLOW",
    )
    more = service.say(_head("/fit", _JSON) + b"Content-Length: 2\r\n\r\n{}}}}}\r\n\r\n")
    assert b"BAD_REQUEST" in more


@pytest.mark.parametrize(
    "body",
    [_ASKED, _ASKED + _FILE, _ASKED + _FILE + b"{}\r\n--b", b"", b"--b--", b"\r\n" * 1000],
    ids=["no-file", "open-file", "open-end", "empty", "nothing", "lines"],
)
def test_a_form_that_is_cut_off_is_422(service: Running, body: bytes) -> None:
    """Nothing of it is accepted."""
    assert _code(service.say(_post("/estimate", _FORM, body))) == (422, "BAD_INPUT")


def test_a_form_without_a_boundary_is_422(service: Running) -> None:
    """There is nothing to read it by."""
    headers = b"Content-Type: multipart/form-data\r\n"
    assert _code(service.say(_post("/estimate", headers, b"x"))) == (422, "BAD_INPUT")


def test_ten_million_brackets_are_refused(service: Running) -> None:
    """As a body, for its length; half a million of them for their depth."""
    assert _code(service.say(_post("/fit", _JSON, b"[" * 10_000_000))) == (413, "TOO_LARGE")
    assert _code(service.say(_post("/fit", _JSON, b'{"job":' * 100_000))) == (422, "BAD_INPUT")


def test_uploads_at_the_limit_are_taken_in_bounded_memory(service: Running) -> None:
    """As often as one likes: the fixture looks at the memory."""
    for number in range(4):
        filling = bytes([65 + number]) * (_MAX_UPLOAD_BYTES - 1024)
        body = _ASKED + _FILE + filling + b"\r\n--b--\r\n"
        assert service.say(_post("/estimate", _FORM, body)).startswith(b"HTTP/1.1 202")


def test_a_client_that_goes_away_is_no_error(service: Running) -> None:
    """Nobody is left to be answered: the log says so, and not that we failed."""
    with service.connect() as connection:
        connection.sendall(_head("/fit", _JSON) + b"Content-Length: 9\r\n\r\n{")
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while '"status":499' not in service.log.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.1)


# --- what the worker opens


def _refusal(redis_url: str, trace: bytes) -> InputError:
    """Have a worker answer a question about an upload, and return why it does not."""
    settings = WorkerSettings(redis_url=redis_url, max_trace_bytes=32 * MIB)
    queue = QueueClient(settings)
    try:
        name = queue.save_trace(trace)
        work = Work.model_validate(
            {"kind": WorkKind.ESTIMATE, "trace": name, "gpu": {"name": "t4"}}
        )
        with (
            EngineAnswerer(queue.store, settings) as answerer,
            pytest.raises(InputError) as refused,
        ):
            answerer.answer(work)
    finally:
        queue.close()
    return refused.value


def _bomb(num_bytes: int) -> bytes:
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=6) as file:
        for _ in range(num_bytes // MIB):
            file.write(b" " * MIB)
    return packed.getvalue()


def _peak_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def test_a_gzip_bomb_is_opened_only_so_far(redis_url: str) -> None:
    """Eight times the limit: refused at the limit, with little more memory than that."""
    bomb = _bomb(256 * MIB)
    before = _peak_bytes()

    refused = _refusal(redis_url, bomb)

    assert refused.code == "BAD_TRACE"
    assert "unpacks to more than 200 times its size" in refused.message
    assert (_peak_bytes() - before) / (32 * MIB) < _MAX_RATIO


@pytest.mark.parametrize(
    "trace",
    [
        b"[" * 10_000_000,
        b'{"traceEvents":' + b"[" * 10_000_000,
        b'{"traceEvents": [], "memgate": ' + b'{"a":' * 1_000_000,
        b"\x1f\x8b" + b"\x00" * 100,
        gzip.compress(b'{"traceEvents": []}')[:-9],
        b"\x89PNG\r\n",
        b"",
        b'{"traceEvents": 1}',
        b'{"traceEvents": []}',
    ],
    ids=[
        *("brackets", "inside", "notes", "bad-gzip", "cut-gzip", "image", "empty", "type"),
        "no-events",
    ],
)
def test_an_upload_that_is_no_trace_is_refused(redis_url: str, trace: bytes) -> None:
    """With a code, not with a crash."""
    assert _refusal(redis_url, trace).code in ("BAD_TRACE", "INCOMPLETE_TRACE")
