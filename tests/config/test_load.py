"""The configuration: where it is looked for, which source wins, and what is said of mistakes."""

from __future__ import annotations

import os
import subprocess
import sys
import typing
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler import Scheduler
from scheduler.config.load import changed, describe, load
from scheduler.config.model import KINDS, Config
from scheduler.config.scheduler_options import scheduler_options
from scheduler.config.sources import Section, fields_of
from scheduler.errors import ConfigError
from scheduler.model.defaults import RETENTION

EXAMPLE = """
[store]
url = "postgresql+psycopg://schedd@db.example/schedd"
auto_migrate = true
notify = false
[tasks]
modules = ["myapp.jobs"]
path = ["."]
state = "myapp.state:make"
builtin = ["FileIdGeneratorTask"]
[worker]
queues = ["mail", "photos"]
lease = 20
drain = "2m"
processes = 3
grace = "10s"
recycle_tasks = 1000
recycle_memory = "512M"
max_concurrent_tasks = 12
default_timeout = "2h"
unmoved_after = "20m"
graphs = "short-first"
graphs_in = ["etl"]
restart_when_hung = true
[pools.high]
slots = 4
[pools.low]
async_slots = 7
[schedules]
timezone = "Europe/Berlin"
misfire_grace = 1.5
[log]
format = "json"
level = "debug"
attempts = "all"
[http]
allow = ["10.0.0.0/8"]
ca = "own.pem"
secrets = ["token@api.example"]
secrets_dir = "secrets"
[mail]
host = "smtp.example"
port = 2525
tls = "tls"
user = "me"
password = "hunter2"
sender = "me@example"
ca = "own.pem"
[actions]
name = "alice.example"
key_file = "key.pem"
directory = "actions"
audience = ["bob.example"]
require_audience = false
inbox = "https://{recipient}/in"
keys = "https://{issuer}/keys"
files = "https://{issuer}/{file_id}"
keep_keys = 60
max_file = 1000
following = ["bob.example"]
connected = ["carol.example"]
relation = "myapp.social:relation"
[cleanup]
roots = ["tmp"]
[backup]
sources = ["data"]
destinations = ["backups"]
[batch]
functions = ["myapp.jobs:one"]
[retention]
success = "36h"
failed = "1w"
outcomes = 86400
events = "2w"
results = "2h"
keys = "3h"
audit = "1d"
dead = "90d"
cancelled = 60
skipped = "1d"
stats = "30d"
[metrics]
rollups = false
listen = "127.0.0.1:9464"
[otel]
enabled = true
endpoint = "http://127.0.0.1:4318"
ratio = 0.5
slow = "2m"
parent = "producer"
service = "shop"
settle = true
logs = false
metrics = false
[api]
enabled = true
[console]
listen = "unix:/run/schedd/console.sock"
auth = "proxy"
users = "/etc/schedd/console_users"
groups = ["ops = operator"]
roles = ["oncall = retry, cancel"]
trusted_proxies = ["unix"]
proxy_secret = "a long one"
hosts = ["jobs.example.com"]
prefix = "/schedd"
frame_ancestors = ["https://portal.example.com"]
read_only = true
commands = true
label = "production"
zone = "Europe/Berlin"
trace_url = "https://tempo.example.com/{trace_id}"
[gateway]
listen = "127.0.0.1:8470"
urls = ["http://127.0.0.1:8470"]
secret = "0123456789abcdef"
max_body = 1048576
cert = "/etc/schedd/gateway.pem"
key = "/etc/schedd/gateway.key"

[door]
listen = "127.0.0.1:8480"
token = "a long one"
kinds = ["TakeOrder"]
max_body = 65536
shared_keys = true
max_requests = 4
[command]
enabled = true
roots = ["/srv/work"]
[files]
blobs = "/srv/blobs"
max_pixels = 1000
roots = ["/srv/in"]
"""


@pytest.fixture(autouse=True)
def empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("scheduler.config.load.PLACES", ("config.toml", str(tmp_path / "etc" / "config.toml")))
    return tmp_path


def write(text: str, name: str = "config.toml") -> str:
    Path(name).parent.mkdir(exist_ok=True)
    Path(name).write_text(text, encoding="utf-8")
    return name


def refused(path: str | None = None, **environ: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(path, environ)
    message = str(caught.value)
    assert len(message.splitlines()) <= 2
    return message


# Reading


def test_a_second_database_is_not_made_from_elsewhere(empty_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path counts from where the program was started."""
    path = str(empty_directory / write('[store]\nurl = "sqlite:///my%20shop.db"\n'))
    elsewhere = empty_directory / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert load(path, {}).store.url == "sqlite:///my%20shop.db", "there is none at all yet"
    (empty_directory / "my shop.db").touch()
    message = refused(path)
    assert f"there is no {elsewhere}/my shop.db, but {empty_directory}/my shop.db, beside the configuration" in message
    assert "give the absolute path" in message
    (elsewhere / "my shop.db").touch()
    load(path, {})
    (elsewhere / "my shop.db").unlink()
    load(path, {"SCHEDD_STORE__URL": f"sqlite:///{elsewhere}/new.db"})
    monkeypatch.chdir(empty_directory)
    load(path, {})


def test_no_file_at_all_gives_the_defaults() -> None:
    config = load(None, {})
    assert config.file is None
    assert config.origins == {}
    assert config.store.url == "sqlite:///schedd.db"
    assert config.store.auto_migrate is True
    assert config.store.notify is True
    assert config.worker.queues == ("*",)
    assert config.worker.processes == len(os.sched_getaffinity(0))
    pools = [(p.slots, p.async_slots) for p in (config.pools.high, config.pools.medium, config.pools.low)]
    assert pools == [(2, 20), (8, 100), (4, 50)]
    assert config.retention.failed == 30 * 86400


def test_every_setting_of_a_file() -> None:
    write(EXAMPLE)
    config = load(None, {})
    unset = {"pools.high.async_slots", "pools.low.slots", "pools.medium.slots", "pools.medium.async_slots"}
    assert set(config.origins) == {name for name in KINDS if not name.startswith("alerts.")} - unset
    assert config.worker.queues == ("mail", "photos")
    assert config.worker.drain == 120
    assert (config.pools.high.slots, config.pools.high.async_slots) == (4, 20)  # the other keeps its default
    assert (config.pools.low.slots, config.pools.low.async_slots) == (4, 7)
    assert (config.retention.success, config.retention.failed) == (36 * 3600, 7 * 86400)
    assert (config.retention.dead, config.retention.cancelled) == (90 * 86400, 60)
    assert (config.otel.ratio, config.otel.slow, config.otel.parent) == (0.5, 120, "producer")
    assert config.schedules.misfire_grace == 1.5
    assert config.tasks.state == "myapp.state:make"


def test_the_file_is_looked_for_in_this_order(empty_directory: Path) -> None:
    write("[worker]\nlease = 4", "etc/config.toml")
    assert load(None, {}).worker.lease == 4
    write("[worker]\nlease = 3")
    assert load(None, {}).worker.lease == 3
    write("[worker]\nlease = 2", "by_environment.toml")
    environ = {"SCHEDD_CONFIG": "by_environment.toml"}
    assert load(None, environ).worker.lease == 2
    write("[worker]\nlease = 1", "named.toml")
    config = load("named.toml", environ)
    assert config.worker.lease == 1
    assert config.file == str(empty_directory / "named.toml")


def test_an_empty_schedd_config_names_no_file() -> None:
    assert load(None, {"SCHEDD_CONFIG": ""}).file is None


def test_the_environment_wins_over_credentials_and_they_over_the_file(empty_directory: Path) -> None:
    write('[store]\nurl = "sqlite:///file.db"\n[worker]\nlease = 1\ndrain = 1')
    write("sqlite:///credential.db\n", "credentials/store.url")
    write("2\n", "credentials/worker.lease")
    environ = {
        "CREDENTIALS_DIRECTORY": str(empty_directory / "credentials"),
        "SCHEDD_STORE__URL": "sqlite:///e.db",
    }
    config = load(None, environ)
    assert (config.store.url, config.worker.lease, config.worker.drain) == ("sqlite:///e.db", 2, 1)
    assert config.origins == {
        "store.url": "SCHEDD_STORE__URL",
        "worker.lease": "credential worker.lease",
        "worker.drain": "config.toml",
    }


@pytest.mark.parametrize(
    ("variable", "text", "name", "value"),
    [
        ("SCHEDD_COMMAND__ENABLED", "true", "command.enabled", True),
        ("SCHEDD_COMMAND__ENABLED", "Off", "command.enabled", False),
        ("SCHEDD_STORE__AUTO_MIGRATE", "0", "store.auto_migrate", False),
        ("SCHEDD_STORE__AUTO_MIGRATE", "", "store.auto_migrate", True),
        ("SCHEDD_POOLS__HIGH__SLOTS", "7", "pools.high.slots", 7),
        ("SCHEDD_WORKER__LEASE", "1.5", "worker.lease", 1.5),
        ("SCHEDD_WORKER__LEASE", "2m", "worker.lease", 120),
        ("SCHEDD_RETENTION__SUCCESS", "1h30m", "retention.success", 5400),
        ("SCHEDD_WORKER__QUEUES", "a, b,", "worker.queues", ("a", "b")),
        ("SCHEDD_CLEANUP__ROOTS", '["a,b", "c"]', "cleanup.roots", ("a,b", "c")),
        ("SCHEDD_TASKS__MODULES", "", "tasks.modules", ()),
        ("SCHEDD_TASKS__STATE", "", "tasks.state", None),
        ("SCHEDD_LOG__LEVEL", "DEBUG", "log.level", "debug"),
    ],
)
def test_settings_from_the_environment_are_typed(variable: str, text: str, name: str, value: object) -> None:
    write('[tasks]\nmodules = ["m"]\nstate = "m:f"')
    config = load(None, {variable: text})
    assert config.get(name) == value
    assert config.origins[name] == variable


def test_what_belongs_to_others_is_left_alone(empty_directory: Path) -> None:
    write("secret", "credentials/smtp-password")
    environ = {
        "CREDENTIALS_DIRECTORY": str(empty_directory / "credentials"),
        "SCHEDD_DEBUG": "1",
        "SCHEDD_PORT_8080_TCP": "tcp://10.0.0.1:8080",  # what Kubernetes sets for a service named schedd
        "SCHEDD_SERVICE_HOST": "10.0.0.1",
        "PATH": "/bin",
    }
    assert load(None, environ).origins == {}


def test_credentials_that_went_away_are_none(empty_directory: Path) -> None:
    assert load(None, {"CREDENTIALS_DIRECTORY": str(empty_directory / "gone")}).origins == {}


def test_auto_migrate_is_for_sqlite_unless_it_is_set() -> None:
    url = "postgresql+psycopg://u@h/d"
    assert load(None, {"SCHEDD_STORE__URL": url}).store.auto_migrate is False
    assert load(None, {"SCHEDD_STORE__URL": url, "SCHEDD_STORE__AUTO_MIGRATE": "yes"}).store.auto_migrate is True


def test_a_byte_order_mark_is_no_mistake() -> None:
    Path("config.toml").write_bytes(b"\xef\xbb\xbf[worker]\nlease = 9\n")
    assert load(None, {}).worker.lease == 9


# Mistakes


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[worker]\nlaese = 3", "unknown setting worker.laese in config.toml; did you mean worker.lease?"),
        (
            '[workers]\nqueues = ["a"]',
            "unknown setting workers.queues in config.toml; did you mean worker.queues?",
        ),
        ("[worker]\nslots = 3", "did you mean pools.high.slots or pools.medium.slots or pools.low.slots?"),
        ("[pools.urgent]\nslots = 3", "unknown setting pools.urgent.slots in config.toml"),
        ("[nonsense]", "unknown setting nonsense in config.toml"),
        ("[pools]\nhigh = 3", "pools.high is a section: write [pools.high]"),
        ('store = "sqlite:///x.db"', "store is a section: write [store]"),
        ("[worker]\nlease = true", "setting worker.lease: expected seconds, or text such as"),
        ('[worker]\nlease = "soon"', 'not "soon", in config.toml'),
        ("[worker]\nlease = 0", "setting worker.lease: expected seconds"),
        ("[worker]\nlease = -1", "not -1, in config.toml"),
        ("[worker]\nlease = inf", "from 0 to a thousand years"),
        ("[worker]\nlease = nan", "worker.lease"),
        (
            '[worker]\nprocesses = "2"',
            'setting worker.processes: expected a whole number, not "2", in config.toml',
        ),
        ("[worker]\nprocesses = 0", "expected a whole number, at least 1, not 0"),
        ("[schedules]\nmisfire_grace = 0", '30d", at least 1, not 0'),  # catchup none would never fire
        ("[pools.low]\nslots = 1.5", "setting pools.low.slots: expected a whole number, not 1.5"),
        ('[command]\nenabled = "yes"', 'setting command.enabled: expected true or false, not "yes"'),
        (
            '[tasks]\nmodules = "myapp.jobs"',
            'setting tasks.modules: expected a list of texts such as ["a", "b"]',
        ),
        ("[tasks]\nmodules = [1]", "setting tasks.modules: expected a list of texts"),
        ('[tasks]\nstate = "myapp.state.make"', 'expected "module:function", not "myapp.state.make"'),
        (
            '[log]\nformat = "xml"',
            'setting log.format: expected auto, console or json, not "xml", in config.toml',
        ),
        (
            '[schedules]\ntimezone = "Europe/Bonn"',
            "setting schedules.timezone (config.toml): unknown time zone 'Europe/Bonn'",
        ),
        ('[schedules]\ntimezone = "../etc/passwd"', "unknown time zone '../etc/passwd'"),
        ("[worker]\nqueues = []", 'setting worker.queues (config.toml): no queue; use ["*"] for all'),
        ('[worker]\nqueues = ["a b"]', 'expected the name of a queue, or "*", not "a b"'),
        ('[http]\nallow = ["999.1.1.1/99"]', 'an address, or a network such as 10.0.0.0/8, not "999.1.1.1/99"'),
        (
            '[http]\nsecrets = ["token"]',
            'setting http.secrets (config.toml): expected "name@host" or "name@http://host", not "token"',
        ),
        ('[http]\nsecrets = ["token@ftp://host"]', 'or "name@http://host", not "token@ftp://host"'),
        ('[http]\nsecrets = ["token@http://host/path"]', 'or "name@http://host", not "token@http://host/path"'),
        ('[batch]\nfunctions = ["f"]', 'setting batch.functions (config.toml): expected "module:function", not "f"'),
        ('[store]\nurl = "sqlite://"', "an in-memory SQLite database does not survive a restart"),
        ('[store]\nurl = "sqlite:///:memory:"', "an in-memory SQLite database does not survive a restart"),
        (
            '[store]\nurl = "sqlite://data/shop.db"',
            "the path begins after a third slash: sqlite:///data/shop.db, or sqlite:////data/shop.db from the root",
        ),
        ("[store]\nurl = 5", "setting store.url: expected text, not the value there, in config.toml"),
        ('[store]\nurl = ""', "setting store.url: expected text, not empty"),
        ('[store]\nurl = "sqlite:///a\\u0000b"', "setting store.url: expected text without NUL, not the value there"),
        ('[tasks]\npath = ["a\\u0000b"]', "setting tasks.path: expected a list of texts"),
        ('[store]\nurl = "schedd.db"', "setting store.url (config.toml): not a database URL; use sqlite:///"),
        ('[store]\nurl = "mysql://h/d"', "not a database URL"),
        (
            '[store]\nurl = "postgresql://u:p@ss@h/d"',
            "setting store.url (config.toml): its password has an @: write it as %40",
        ),
        ("[worker]\nlease : 3", "(at line 2, column 7)"),
        ("[worker]\nlease = 3\nlease = 4\n", "Cannot overwrite a value"),
    ],
)
def test_a_mistake_in_the_file_is_named(text: str, says: str) -> None:
    write(text)
    assert says in refused()


@pytest.mark.parametrize(
    ("variable", "text", "says"),
    [
        ("SCHEDD_STORE__URI", "x", "unknown setting SCHEDD_STORE__URI in the environment; did you mean"),
        ("SCHEDD_STORE_URL", "sqlite:///x", "did you mean SCHEDD_STORE__URL?"),
        ("SCHEDD_POOLS_HIGH_SLOTS", "1", "did you mean SCHEDD_POOLS__HIGH__SLOTS?"),
        ("SCHEDD_ZZZ__QQQ", "1", "unknown setting SCHEDD_ZZZ__QQQ in the environment"),
        ("SCHEDD_POOLS__HIGH__SLOTS", "many", '__SLOTS: expected a whole number, not "many", in'),
        ("SCHEDD_WORKER__LEASE", "", "setting SCHEDD_WORKER__LEASE: expected seconds"),
        ("SCHEDD_COMMAND__ENABLED", "maybe", 'expected true or false, not "maybe", in the environment'),
        ("SCHEDD_WORKER__QUEUES", '["a"', "a JSON list"),
        ("SCHEDD_WORKER__QUEUES", "[1]", "setting SCHEDD_WORKER__QUEUES: expected a list of texts"),
    ],
)  # fmt: skip
def test_a_mistake_in_the_environment_is_named(variable: str, text: str, says: str) -> None:
    assert says in refused(**{variable: text})


def test_no_pool_has_a_slot() -> None:
    environ = {
        f"SCHEDD_POOLS__{pool}__{kind}": "0" for pool in ("HIGH", "MEDIUM", "LOW") for kind in ("SLOTS", "ASYNC_SLOTS")
    }
    assert "no pool has a slot" in refused(**environ)


def test_a_named_file_must_be_there() -> None:
    assert refused("nowhere.toml") == "there is no configuration file nowhere.toml"
    assert refused(SCHEDD_CONFIG="nowhere.toml") == "there is no configuration file nowhere.toml"


def test_a_file_that_cannot_be_read(empty_directory: Path) -> None:
    (empty_directory / "config.toml").mkdir()
    assert "cannot read the configuration file config.toml: Is a directory" in refused()
    Path("latin.toml").write_bytes(b'[log]\n# caf\xe9\nlevel = "info"\n')
    assert "latin.toml is not UTF-8 text (byte 11)" in refused("latin.toml")
    Path("dangling.toml").symlink_to("nowhere")
    assert "there is no configuration file dangling.toml" in refused("dangling.toml")


def test_a_file_without_permission(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_path: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    write("[worker]\nlease = 3")
    monkeypatch.setattr(Path, "read_bytes", refuse)  # root, who may run the tests, can read everything
    assert refused() == "cannot read the configuration file config.toml: Permission denied"


def test_a_mistake_in_a_credential_is_named_without_its_value(empty_directory: Path) -> None:
    environ = {"CREDENTIALS_DIRECTORY": str(empty_directory / "credentials")}
    write("hunter2", "credentials/worker.lease")
    message = refused(**environ)
    assert "setting credential worker.lease: expected seconds" in message
    assert "hunter2" not in message
    write("x", "credentials/store.uri")
    assert "store.uri; did you mean store.url?" in refused(**environ)


@pytest.mark.parametrize(
    "text",
    [
        "postgres://user:hunter2@host/db",
        "postgresql+psycopg:/user:hunter2@host/db",
        "hunter2",
        "postgresql//u:hun@ter2@host/db",
    ],
)
def test_an_error_never_tells_a_password(text: str) -> None:
    assert "ter2" not in refused(SCHEDD_STORE__URL=text)
    write(f"[store]\nurl = [{text!r}]")
    assert "ter2" not in refused()


# Showing


def test_describe_tells_values_and_sources_without_passwords() -> None:
    write('[retention]\nsuccess = "36h"')
    config = load(None, {"SCHEDD_STORE__URL": "postgresql+psycopg://u:hunter2@h/d"})
    settings = {setting.name: setting for setting in describe(config)}
    assert list(settings) == list(KINDS)
    assert settings["store.url"].text == '"postgresql+psycopg://u:***@h/d"'
    assert settings["store.url"].source == "SCHEDD_STORE__URL"
    assert (settings["retention.success"].value, settings["retention.success"].text) == (129600, '"36h"')
    assert settings["retention.success"].source == "config.toml"
    assert (settings["tasks.state"].value, settings["tasks.state"].text) == (None, "")
    assert settings["worker.queues"].text == '["*"]'
    assert settings["worker.lease"].source == "default"


def test_changed_names_the_settings_that_differ() -> None:
    one = load(None, {})
    two = load(None, {"SCHEDD_LOG__LEVEL": "debug", "SCHEDD_POOLS__LOW__SLOTS": "9"})
    assert changed(one, one) == []
    assert changed(one, two) == ["pools.low.slots", "log.level"]


def test_a_config_can_be_made_without_a_file() -> None:
    assert Config().worker.lease == 30


def test_importing_it_is_cheap() -> None:
    slow = {"sqlalchemy", "structlog", "logging", "asyncio"}
    code = f"import sys, scheduler.config.model; print(*{slow} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_what_a_scheduler_is_made_with(empty_directory: Path) -> None:
    write('[worker]\nqueues = ["mail"]\n[files]\nblobs = "blobs"\nroots = ["in"]\n[retention]\nfailed = "1d"')
    options = scheduler_options(load(None, {}))
    assert options["pools"] == {"high": (2, 20), "medium": (8, 100), "low": (4, 50)}
    assert options["queues"] == ("mail",)
    assert options["retention"] == {
        "success": 86400,
        "failed": 86400,
        "outcomes": 90 * 86400,
        "events": 30 * 86400,
        "results": 86400,
        "keys": 86400,
        "audit": 365 * 86400,
        "stats": RETENTION["stats"],
    }
    assert options["settings"]["command"] == {"enabled": False, "roots": []}
    assert options["settings"]["files"] == {
        "blobs": str(empty_directory / "blobs"),  # absolute, so that a change of directory does not move it
        "roots": [str(empty_directory / "in")],
        "max_pixels": 80_000_000,
    }


def _sections(kind: type) -> Iterator[type]:
    for one in kind.__subclasses__():
        yield one
        yield from _sections(one)


def test_the_types_of_fields_are_those_of_pythons_own_reading() -> None:
    for section in (Config, *_sections(Section)):
        hints = typing.get_type_hints(section, include_extras=True)
        assert list(fields_of(section).items()) == list(hints.items())


def test_a_program_hears_of_the_third_slash_too() -> None:
    with pytest.raises(ConfigError, match="third slash: sqlite:///data/shop"):
        Scheduler("sqlite://data/shop.db")
