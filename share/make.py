"""Writes the man pages and the shell completions in share/ from what the programs say of themselves.

    python share/make.py [DIRECTORY]        (make man)

The wheel installs what lies below share/, so the files are kept in the repository; a test compares them.
"""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import click
from click.testing import CliRunner

from scheduler import __version__
from scheduler.cli.root import root, summaries
from scheduler.daemon.main import options_parser

HERE = Path(__file__).resolve().parent
COMPLETIONS = {
    "bash": "bash-completion/completions/schedctl",
    "zsh": "zsh/site-functions/_schedctl",
    "fish": "fish/vendor_completions.d/schedctl.fish",
}
SPECIAL = {"\\": r"\(rs", "-": r"\-", "'": r"\(aq", "`": r"\(ga", "^": r"\(ha", "~": r"\(ti", '"': r"\(dq"}

Item = tuple[str, str]  # what is described, as roff, and the text about it

SCHEDCTL_EXAMPLES = [
    ("schedctl status", "The store at a glance, with its problems."),
    ("schedctl run -- tar czf backup.tgz photos", "Schedule a command, for a daemon that may run commands."),
    ("schedctl submit SendInvoice -P to=me@example.com --depend-on 7", "Schedule a task that runs after task 7."),
    ("schedctl list --status Failed --since 2h", "Tasks that have failed in the last two hours."),
    ("schedctl show 7", "Everything about task 7, and why it does not run."),
    ("schedctl logs -f 7", "The output of task 7, until it has ended."),
]
FILES = [("./config.toml", "The configuration, if none is named."), ("/etc/schedd/config.toml", "Else this one.")]
ENVIRONMENT = [
    ("SCHEDD_CONFIG", "The configuration, unless --config names one."),
    ("SCHEDD_SECTION__NAME", "A single setting, such as SCHEDD_STORE__URL for url in [store]. It wins over the file."),
    (
        "CREDENTIALS_DIRECTORY",
        "A directory with a file for each setting, such as store.url: systemd's LoadCredential=.",
    ),
    ("SCHEDD_DEBUG", "With 1, errors come with a traceback."),
]
NO_COLOR = ("NO_COLOR", "With any value, no colours on a terminal.")
STATUSES = [
    ("0", "It ran and was stopped, or --check found nothing wrong."),
    ("1", "It could not go on."),
    ("2", "Command line, configuration or task modules are wrong; starting again does not help."),
    ("5", "The database cannot be used and waiting does not help, or it was away at the very end."),
    ("75", "It wants to be started again: for schedctl worker restart, or for handlers that hang."),
    ("130", "It was interrupted before it ran."),
]
SIGNALS = [
    (
        "SIGTERM, SIGINT",
        "Take no more tasks, let those that run finish within [worker] drain, then end. The second time: end at once.",
    ),
    ("SIGHUP", "Read the configuration again."),
    ("SIGUSR1", "Write to stderr what every thread is doing."),
]


def plain(text: str) -> str:
    """The text as roff prints it unchanged, without fonts."""
    made = "".join(SPECIAL.get(c, c if c.isascii() else f"\\[u{ord(c):04X}]") for c in text)
    return "\\&" + made if made.startswith(".") else made


def bold(text: str) -> str:
    return rf"\fB{plain(text)}\fR"


def italic(text: str) -> str:
    return rf"\fI{plain(text)}\fR"


def paragraphs(text: str) -> Iterator[str]:
    for part in inspect.cleandoc(text).split("\n\n"):
        yield ".PP"
        yield plain(" ".join(part.split()))


def items(given: Iterable[Item], indent: str = "") -> Iterator[str]:
    for name, text in given:
        yield from (f".TP {indent}".rstrip(), name, plain(text))


def table(given: Iterable[Item]) -> Iterator[str]:
    """Items without lines between them."""
    yield from (".PD 0", *items(given, "12"), ".PD")


def section(title: str, *lines: str) -> Iterator[str]:
    yield f".SH {title}"
    yield from lines


def page(name: str, about: str) -> Iterator[str]:
    yield '.\\" Made by share/make.py: change the help texts, and run "make man".'
    yield f'.TH {name.upper()} 1 "" "schedd {__version__}" "User Commands"'
    yield from (".nh", ".ad l")  # commands are copied from here: neither hyphens nor gaps in them
    yield from section("NAME", rf"{name} \- {plain(about)}")


def usage(command: click.Command, ctx: click.Context) -> str:
    """The command with its arguments, as roff."""
    pieces = command.collect_usage_pieces(ctx)
    return " ".join([bold(ctx.command_path), *map(italic, pieces)])


def metavar(option: click.Option, ctx: click.Context) -> str:
    """The placeholder for the value of an option. Before click 8.2 that took no context."""
    make: Callable[..., str] = option.make_metavar
    return make(ctx) if inspect.signature(make).parameters else make()


def options(command: click.Command, ctx: click.Context) -> Iterator[Item]:
    """Its options; of a command below the root those that are not the root's."""
    common = [option.get_help_record(ctx) for option in root.get_params(ctx)] if ctx.parent else []
    for option in command.get_params(ctx):
        record = option.get_help_record(ctx)
        if isinstance(option, click.Option) and record is not None and record not in common:
            helps = {*option.opts} == {*ctx.help_option_names}  # whose order click 8.1 does not keep
            given = ctx.help_option_names if helps else [*option.opts, *option.secondary_opts]
            names = ", ".join(map(bold, given))
            takes = "" if option.is_flag or option.count else " " + italic(metavar(option, ctx))
            yield names + takes, record[1]


def reference(command: click.Command, ctx: click.Context) -> Iterator[str]:
    """A command, and what a group has below it."""
    if isinstance(command, click.Group):
        for name in command.list_commands(ctx):
            below = command.get_command(ctx, name)
            assert below is not None
            yield from reference(below, click.Context(below, info_name=name, parent=ctx))
    else:
        yield f'.SS "{usage(command, ctx)}"'
        yield from paragraphs(command.help or "")
        yield from items(options(command, ctx))


def schedctl() -> str:
    """The man page schedctl(1)."""
    ctx = click.Context(root, info_name="schedctl", **root.context_settings)
    *about, statuses = inspect.cleandoc(root.help or "").split("\n\n")
    listed = " ".join(statuses.split()).removeprefix("Exit status: ").rstrip(".").split("; ")
    ends = [end.split(" ", 1) for end in listed]
    commands = [(bold(name), text) for name, text in summaries()]
    lines = [
        *page("schedctl", "look at schedd's tasks and change them"),
        *section("SYNOPSIS", usage(root, ctx)),
        *section("DESCRIPTION", *paragraphs("\n\n".join(about[1:]))),
        *section("COMMANDS", *table(commands)),
        *section(
            "OPTIONS",
            plain("They stand before or, but for --version, after the command's name."),
            *items(options(root, ctx)),
        ),
        *section("REFERENCE", *reference(root, ctx)),
        *section("EXIT STATUS", *items((bold(number), f"{text[:1].upper()}{text[1:]}.") for number, text in ends)),
        *section("ENVIRONMENT", *items((bold(name), text) for name, text in [*ENVIRONMENT, NO_COLOR])),
        *section("FILES", *items((italic(name), text) for name, text in FILES)),
        *section("EXAMPLES", *items((bold(line), text) for line, text in SCHEDCTL_EXAMPLES)),
        *section("SEE ALSO", r"\fBschedd\fR(1)"),
    ]
    return "\n".join(lines) + "\n"


def schedd() -> str:
    """The man page schedd(1)."""
    parser = options_parser()
    known = [a for a in parser._actions if a.option_strings and a.help != argparse.SUPPRESS]
    given = [
        (", ".join(map(bold, a.option_strings)) + (f" {italic(str(a.metavar))}" if a.metavar else ""), a.help or "")
        for a in known
    ]
    synopsis = " ".join(
        f"[{bold(a.option_strings[-1])}{' ' + italic(str(a.metavar)) if a.metavar else ''}]" for a in known
    )
    about = (
        "schedd runs tasks that programs and schedctl have stored in a database: after the tasks they depend on, "
        "in order of priority, again after failures, and by the clock. It runs in the foreground and writes its log "
        "to stderr; a service manager starts it.\n\n"
        "The configuration says which database that is, and which modules define the tasks. Several daemons may serve "
        "one PostgreSQL database."
    )
    lines = [
        *page("schedd", "the daemon that runs scheduled tasks"),
        *section("SYNOPSIS", f"{bold('schedd')} {synopsis}"),
        *section("DESCRIPTION", *paragraphs(about)),
        *section("OPTIONS", *items((name, f"{text[:1].upper()}{text[1:]}.") for name, text in given)),
        *section("SIGNALS", *items((bold(name), text) for name, text in SIGNALS)),
        *section("EXIT STATUS", *items((bold(number), text) for number, text in STATUSES)),
        *section("ENVIRONMENT", *items((bold(name), text) for name, text in ENVIRONMENT)),
        *section("FILES", *items((italic(name), text) for name, text in FILES)),
        *section("SEE ALSO", r"\fBschedctl\fR(1), \fBsystemd.service\fR(5)"),
    ]
    return "\n".join(lines) + "\n"


def completion(shell: str) -> str:
    """The script that ``schedctl completion`` prints for a shell."""
    return CliRunner().invoke(root, ["completion", shell], catch_exceptions=False).stdout


def files() -> dict[str, str]:
    """Path below share/ -> content."""
    made = {"man/man1/schedctl.1": schedctl(), "man/man1/schedd.1": schedd()}
    return made | {path: completion(shell) for shell, path in COMPLETIONS.items()}


def main() -> None:
    directory = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    for path, content in files().items():
        target = directory / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(content, encoding="utf-8")
        print(target)


if __name__ == "__main__":
    main()
