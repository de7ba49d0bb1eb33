"""What an operator set wrong is told in a sentence."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from memgate_service.settings import ServiceSettings
from memgate_worker.queue.connecting import SentinelAddress
from memgate_worker.queue.variables import SETTINGS, find_unknown_variables
from memgate_worker.settings import WorkerSettings


def test_a_wrong_variable_is_named_with_its_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """No traceback at the start of a program."""
    monkeypatch.setenv("MEMGATE_PORT", "abc")

    with pytest.raises(SystemExit, match="MEMGATE_PORT is 'abc': it must be a whole number"):
        ServiceSettings.from_environment()


def test_a_queue_that_there_is_not_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the worker waits on it for ever."""
    monkeypatch.setenv("MEMGATE_QUEUES", "fast,slwo")

    with pytest.raises(SystemExit, match=r"MEMGATE_QUEUES is 'fast,slwo': .*write 'fast', 'slow'"):
        WorkerSettings.from_environment()


def test_a_password_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """The address of a queue may hold one."""
    monkeypatch.setenv("MEMGATE_REDIS_URL", "http://:hunter2@queue")

    with pytest.raises(SystemExit, match="MEMGATE_REDIS_URL is wrong: it must begin with redis://"):
        WorkerSettings.from_environment()


def test_a_rule_about_several_variables_names_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a field of its own."""
    monkeypatch.setenv("MEMGATE_TLS_KEY", "key.pem")

    with pytest.raises(SystemExit, match=r"^give both MEMGATE_TLS_CERTIFICATE and MEMGATE_TLS_KEY"):
        ServiceSettings.from_environment()


def test_a_misspelt_variable_is_reported_and_the_program_starts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It would be ignored in silence; but another program may have its own."""
    monkeypatch.setenv("MEMGATE_REDISURL", "redis://elsewhere")

    settings = WorkerSettings.from_environment()

    assert settings.redis_url != "redis://elsewhere"
    assert capsys.readouterr().err == (
        "memgate: MEMGATE_REDISURL: it is set, and there is no such setting;"
        " did you mean 'MEMGATE_REDIS_URL'?\n"
    )


@pytest.mark.parametrize(
    ("name", "want"),
    [
        ("MEMGATE_MAX_QUEUD", ("MEMGATE_MAX_QUEUED", "MEMGATE_MAX_QUEUED_EACH")),
        ("MEMGATE_APIKEY", ("MEMGATE_API_KEY",)),
        ("MEMGATE_ZEBRA", ()),
    ],
)
def test_unknown_variables_have_near_names(name: str, want: tuple[str, ...]) -> None:
    """Where there is one."""
    (mistake,) = find_unknown_variables([name, "PATH", "MEMGATE_PORT"])

    assert (mistake.field, mistake.near) == (name, want)


@pytest.mark.parametrize(
    "name",
    [
        "MEMGATE_SERVICE_HOST",
        "MEMGATE_SERVICE_PORT_HTTP",
        "MEMGATE_PORT_8080_TCP_ADDR",
        "MEMGATE_VALKEY_PORT",
        "MEMGATE_PHANTOM_TOTAL_BYTES",
        "MEMGATE_RUNTIMES_DIR",
    ],
)
def test_variables_of_others_are_none_of_our_business(name: str) -> None:
    """Kubernetes sets some beside a Service, and our own processes set some for their children."""
    assert not list(find_unknown_variables([name]))


def test_every_setting_is_known() -> None:
    """A worker knows the service's settings too, though it does not import them."""
    fields = {*ServiceSettings.model_fields, *WorkerSettings.model_fields}

    assert fields == SETTINGS


@pytest.mark.parametrize(
    "url",
    ["memgate.example", "ftp://memgate.example", "https://", "https://m.example/", "http://u:p@m"],
)
def test_a_public_url_begins_a_link(url: str) -> None:
    """Everybody is shown it, and a path is added to it."""
    with pytest.raises(ValidationError, match="public_url"):
        ServiceSettings(public_url=url)


@pytest.mark.parametrize(
    ("url", "want"),
    [
        ("redis+sentinel://one/name", ([("one", 26379)], "name", "redis://primary/0")),
        (
            "rediss+sentinel://u:p%40w@one:1,[::1]:2/name/3?sentinel_password=x",
            ([("one", 1), ("::1", 2)], "name", "rediss://u:p%40w@primary/3?sentinel_password=x"),
        ),
        ("redis://one/0", None),
    ],
)
def test_an_address_of_sentinels_is_taken_apart(url: str, want: object) -> None:
    """Hosts, the primary's name, and what a connection to a single server is given."""
    assert SentinelAddress.parse(url) == want


@pytest.mark.parametrize("url", ["redis+sentinel://:hunter2@", "redis+sentinel://:hunter2@one:x/a"])
def test_a_wrong_address_of_sentinels_is_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its form, and without its password."""
    monkeypatch.setenv("MEMGATE_REDIS_URL", url)

    with pytest.raises(SystemExit, match=r"redis\+sentinel://HOST:PORT,HOST:PORT/NAME") as refused:
        WorkerSettings.from_environment()
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "replicas", "want"),
    [
        ("redis+sentinel://one/name", "auto", 1),
        ("redis://one", "auto", 0),
        ("redis://one", "2", 2),
        ("redis+sentinel://one/name", "unconfirmed", 0),
    ],
)
def test_replicas_confirm_where_there_are_some(url: str, replicas: str, want: int) -> None:
    """Unless the operator says otherwise."""
    assert WorkerSettings(redis_url=url, replicas=replicas).num_replicas == want


def test_a_wrong_number_of_replicas_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """With what it may be."""
    monkeypatch.setenv("MEMGATE_REPLICAS", "some")

    with pytest.raises(SystemExit, match=r"MEMGATE_REPLICAS is 'some': .*'unconfirmed'"):
        WorkerSettings.from_environment()
