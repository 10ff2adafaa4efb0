"""Task types for the virtual machine: greedy, or multiplying."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from scheduler import Context, RetryPolicy, Task

ONCE = RetryPolicy(min_wait=0, max_wait=0, max_attempts=1, strategy="fixed")
HUNGRY = """
import subprocess, sys, time
children = [subprocess.Popen([sys.executable, "-c", sys.argv[2]]) for _ in range(int(sys.argv[1]))]
sys.exit(max(abs(child.wait()) for child in children))
"""
EATS = "import time; kept = bytearray(200 << 20); kept[::4096] = bytes([1]) * len(kept[::4096]); time.sleep(3)"


class Family(Task, isolation="process", retry=ONCE, timeout=300, limits={"memory": "256M"}):
    """Its grandchildren take 200 MiB each: fewer than the limit, so no limit on single processes stops them."""

    count: int

    def run(self, ctx: Context) -> str:
        subprocess.run([sys.executable, "-c", HUNGRY, str(self.count), EATS], check=True)
        return "all of them had their memory"


class Alone(Task, isolation="process", retry=ONCE, limits={"memory": "256M"}):
    """Takes 4 GiB itself."""

    def run(self, ctx: Context) -> int:
        return len(bytearray(4 << 30))


class Bomb(Task, isolation="process", retry=ONCE, timeout=3600):
    """Doubles, and every other one leads a session of its own."""

    def run(self, ctx: Context) -> None:
        number = 0
        while True:
            number += 1
            try:
                if os.fork() == 0 and number % 2:
                    os.setsid()
            except OSError:
                time.sleep(60)  # each try costs a copy of all pages, and an emulated machine does nothing else


class Where(Task, isolation="process", retry=ONCE):
    """In which control group it runs, and how it could go on."""

    def run(self, ctx: Context) -> dict[str, str]:
        with open("/proc/self/cgroup") as file:
            group = file.read().strip().removeprefix("0::")
        with open(f"/sys/fs/cgroup{group}/memory.max") as file:
            return {"group": group, "max": file.read().strip()}


class Within(Task, isolation="process", retry=ONCE, limits={"memory": "256M"}):
    """As Where, while there is a limit; and it stays below it."""

    def run(self, ctx: Context) -> dict[str, str]:
        kept = bytearray(100 << 20)
        kept[::4096] = bytes([1]) * len(kept[::4096])
        return Where().run(ctx)
