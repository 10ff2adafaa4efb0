"""Where the console listens, and by which names it is known."""

from __future__ import annotations

from scheduler.console.security import host_allowed, hosts_of


def test_a_host_of_ours_is_known() -> None:
    names = hosts_of("jobs.example.com:443", ["other.example.com"])
    assert host_allowed("jobs.example.com", names)
    assert host_allowed("OTHER.example.com:8443", names)
    assert not host_allowed("jobs.example.com.evil.example", names)
