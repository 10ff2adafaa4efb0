"""Where the console listens, and by which names it is known."""

from __future__ import annotations

import pytest

from scheduler.console.security import host_allowed, hosts_of
from scheduler.console.serve import parse_listen
from scheduler.errors import ConfigError


def test_a_host_of_ours_is_known() -> None:
    names = hosts_of("jobs.example.com:443", ["other.example.com"])
    assert host_allowed("jobs.example.com", names)
    assert host_allowed("OTHER.example.com:8443", names)
    assert not host_allowed("jobs.example.com.evil.example", names)


@pytest.mark.parametrize("text", ["", "127.0.0.1", "127.0.0.1:x", "unix:", "127.0.0.1:99999", ":80"])
def test_an_address_that_is_none(text: str) -> None:
    with pytest.raises(ConfigError, match=r"listens on|followed by"):
        parse_listen(text)
