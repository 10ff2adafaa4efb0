"""The command ``schedctl``. It works on the store, so it answers when no daemon runs."""

from __future__ import annotations

from scheduler.interrupts import ends_quietly, raises_again

FIRST_COLLECTION = 300_000  # new objects: several times those of a command that looks once


def main() -> None:
    """Run ``schedctl`` with the arguments of this process."""
    ours = ends_quietly()  # while modules are imported
    import gc

    _collect_later()
    from scheduler.cli.echo import ready
    from scheduler.cli.root import root

    ready()
    if ours:
        raises_again()
    try:
        root.main(prog_name="schedctl")
    finally:
        gc.freeze()  # the end of the process frees it all anyway
        if ours:
            ends_quietly()  # nor shows it a traceback of the end


def _collect_later() -> None:
    """Spare what is imported, which stays, from being searched for garbage; a command that lasts collects as usual."""
    import gc

    usual = gc.get_threshold()

    def collected(phase: str, _: object) -> None:
        if phase == "stop":
            gc.callbacks.remove(collected)
            gc.set_threshold(*usual)

    gc.callbacks.append(collected)
    gc.set_threshold(FIRST_COLLECTION)
