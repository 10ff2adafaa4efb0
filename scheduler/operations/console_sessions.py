"""Sessions of the console that outlast a restart."""

from __future__ import annotations

from scheduler.store.console_sessions import begin as begin
from scheduler.store.console_sessions import end as end
from scheduler.store.console_sessions import user_of as user_of
