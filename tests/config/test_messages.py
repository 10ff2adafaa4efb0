"""``[sources.NAME]`` and ``[sinks.NAME]``: common settings, a transport's own, secrets from files, and mistakes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar

import msgspec
import pytest

from scheduler.config.load import changed, describe, load
from scheduler.config.model import Config
from scheduler.config.sources import Duration
from scheduler.errors import ConfigError
from scheduler.model.secrets import Secret
from scheduler.transports import types
from scheduler.transports.ports import Limits


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    queue: str
    hosts: tuple[str, ...] = ()
    poll: Duration = 5.0
    prefetch: Annotated[int, msgspec.Meta(ge=1)] = 10
    token: Annotated[str | None, Secret] = None
    dlq: str | None = None


class Transport:
    """Keeps what it was made of. Implements nothing: these tests only make it."""

    Settings: ClassVar[type[msgspec.Struct]] = Settings
    limits = Limits()

    def __init__(self, name: str, settings: Any, /) -> None:
        self.name = name
        self.settings = settings


@pytest.fixture(autouse=True)
def a_transport(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for group in (types.SOURCES, types.SINKS):
        monkeypatch.setitem(types.OWN, group, {"probe": f"{__name__}:Transport"})  # type: ignore[arg-type]


def read(text: str, **environ: str) -> Config:
    Path("config.toml").write_text(text, encoding="utf-8")
    return load("config.toml", environ)


def source(text: str, **environ: str) -> Any:
    return types.make_source(read('[sources.orders]\ntype = "probe"\n' + text, **environ), "orders").settings  # type: ignore[union-attr]


def refused(text: str, **environ: str) -> str:
    with pytest.raises(ConfigError) as caught:
        source(text, **environ)
    return str(caught.value)


def test_a_transport_gets_its_own_settings_checked_and_the_common_ones_that_it_names() -> None:
    got = source('queue = "q"\nhosts = ["a", "b"]\npoll = "2m"\nprefetch = 3\ndlq = "dead"\nkind = "TakeOrder"\n')
    assert got == Settings(queue="q", hosts=("a", "b"), poll=120.0, prefetch=3, dlq="dead")


def test_secrets_come_from_the_file_the_environment_or_credentials(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("from a file\n")
    credentials = tmp_path / "credentials"
    credentials.mkdir()
    (credentials / "sources.orders.token").write_text("from a credential\n")
    base = 'queue = "q"\n'
    assert source(base + 'token = "from the line"\n').token == "from the line"
    assert source(base + 'token_file = "token"\n').token == "from a file"
    assert source(base, CREDENTIALS_DIRECTORY=str(credentials)).token == "from a credential"
    assert source(base, SCHEDD_SOURCES__ORDERS__TOKEN="from outside").token == "from outside"
    assert source(base, SCHEDD_SOURCES__ORDERS__PREFETCH="7", SCHEDD_SOURCES__ORDERS__HOSTS="a,b").prefetch == 7
    assert "cannot read nowhere: No such file" in refused(base + 'token_file = "nowhere"\n')
    assert "say one of the two" in refused(base + 'token = "a"\ntoken_file = "token"\n')


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "sources.orders.queue (default): a source of type probe needs it"),
        (
            'queue = "q"\nprefetch = 0',
            "sources.orders.prefetch (config.toml): expected a whole number, at least 1",
        ),
        ('queue = "q"\nprefetch = "many"', "expected a whole number"),
        (
            'queue = "q"\nprefech = 1',
            "sources.orders.prefech (config.toml): a source of type probe has no such",
        ),
        ('queue = "q"\nack = "never"', "expected stored or end"),
        ('queue = "q"\nkey_from = "guess"', 'expected "id", "header.NAME" or "payload.FIELD"'),
        ('queue = "q"\nkinds = ["order.created"]', "message type = kind"),
        ('queue = "q"\nbody = "payload"', "name the kind of the tasks"),
        ('queue = "q"\nbody = "payload"\nkind = "K"', "no message has an idempotency key"),
        ('queue = "q"\nhosts = { a = 1 }', 'expected a list of texts such as ["a", "b"], not {"a": 1}'),
    ],
)
def test_mistakes_are_named(text: str, why: str) -> None:
    assert why in refused(text)


def test_an_unknown_type_and_no_type() -> None:
    with pytest.raises(ConfigError, match=r"no sink of type 'carrier-pigeon'; there are .*probe"):
        types.make_sink(read('[sinks.x]\ntype = "carrier-pigeon"\n'), "x")
    with pytest.raises(ConfigError, match=r"sinks.x.type .*needs the type of its transport"):
        read("[sinks.x]\nbatch = 3\n")


def test_config_check_hides_secrets_and_a_reload_names_what_has_changed() -> None:
    text = '[sources.orders]\ntype = "probe"\nqueue = "q"\ntoken = "hush-hush"\nurl = "amqp://me:hush-hush@host/"\n'
    shown = {one.name: one for one in describe(read(text))}
    assert (shown["sources.orders.queue"].value, shown["sources.orders.token"].value) == ("q", "***")
    assert "hush-hush" not in str(shown)
    assert changed(read(text), read(text.replace('"q"', '"r"'))) == ["sources.orders.queue"]


def test_the_kind_of_a_message() -> None:
    section = read('[sources.o]\ntype = "probe"\nkinds = ["order.created = TakeOrder"]\n').sources["o"]
    assert (section.kind_of("order.created"), section.kind_of("order.gone"), section.kind_of(None)) == (
        "TakeOrder",
        None,
        None,
    )
    section = read('[sources.o]\ntype = "probe"\nkinds = ["order.created = TakeOrder"]\nkind = "Other"\n').sources["o"]
    assert (section.kind_of("order.created"), section.kind_of("order.gone")) == ("TakeOrder", "Other")
    assert read('[sources.o]\ntype = "probe"\n').sources["o"].kind_of("Mail") == "Mail"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[console]\nenabled = true", "unknown setting console.enabled in {file}; console.listen turns it on"),
        ("[door]\nenabled = true", "unknown setting door.enabled in {file}; door.listen turns it on"),
        ("[worker]\nenabled = true", "unknown setting worker.enabled in {file}"),
        ('[console]\ntrusted_proxies = ["nonsense"]', "console.trusted_proxies"),
    ],
)
def test_a_mistake_gets_the_right_hint(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "config.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as error:
        load(str(file), {})
    assert said.format(file=file) in str(error.value)
    assert "alerts" not in str(error.value)
    file.write_text('[console]\ntrusted_proxies = ["unix", "10.0.0.1", "fd00::/8"]')
    load(str(file), {})
