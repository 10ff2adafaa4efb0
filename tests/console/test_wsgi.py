"""The console mounted under WSGI says that it is an ASGI app; servers of ASGI still see one."""

from __future__ import annotations

import asyncio
import inspect
import sys
from wsgiref.util import setup_testing_defaults

import pytest

from scheduler import Scheduler, console
from scheduler.errors import ConfigError


def test_under_wsgi_it_says_what_it_is() -> None:
    pages = console.app(Scheduler("sqlite:////nowhere/jobs.db"), lambda scope: None)
    environ: dict[str, object] = {}
    setup_testing_defaults(environ)
    with pytest.raises(ConfigError, match="an ASGI app, and was called as a WSGI app"):
        pages(environ, lambda status, headers: None)  # type: ignore[arg-type]


def test_in_a_program_of_flask() -> None:
    from flask import Flask
    from werkzeug.middleware.dispatcher import DispatcherMiddleware

    program = Flask(__name__)
    pages = console.app(Scheduler("sqlite:////nowhere/jobs.db"), lambda scope: None)
    program.wsgi_app = DispatcherMiddleware(program.wsgi_app, {"/jobs": pages})  # type: ignore[method-assign, dict-item]
    with pytest.raises(ConfigError, match="ASGI"):
        program.test_client().get("/jobs/")


def test_servers_take_it_for_an_asgi_app() -> None:
    from uvicorn import Config

    pages = console.app(Scheduler("sqlite:////nowhere/jobs.db"), lambda scope: None)
    config = Config(pages, lifespan="off", proxy_headers=False, log_config=None)
    config.load()
    assert config.interface == "asgi3"
    asked = inspect.iscoroutinefunction if sys.version_info >= (3, 12) else asyncio.iscoroutinefunction
    assert asked(pages.__call__)
