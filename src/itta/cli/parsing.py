"""Read the words of a command, before anything runs; a mistake in them is one line."""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr
from functools import partial, wraps
from io import StringIO
from typing import Any

import tyro

from itta.cli.help_texts import in_plain_words
from itta.errors import InputError, unknown

DESCRIPTION = (
    "Train on several image domains, adapt at test time without labels. itta VERB --help shows the flags of a verb, "
    "with examples. Version: --version"
)


def parse(words: Sequence[str], verbs: Mapping[str, Callable[..., Any]]) -> Callable[[], Any]:
    """Return the verb that a command names, ready to be called with the values of its flags."""
    verb = words[0] if words else ""
    if verb not in verbs and not verb.startswith("-"):
        raise unknown("command", verb, [*verbs]) if verb else InputError(f"name a command: {', '.join(verbs)}.")
    app = tyro.extras.SubcommandApp()
    for name, function in verbs.items():
        app.command(name=name)(to_call_later(in_plain_words(function), in_short=verb not in verbs))
    box = StringIO()
    try:
        with redirect_stderr(box):
            call: Callable[[], Any] = app.cli(args=words, prog="itta", description=DESCRIPTION)
    except SystemExit as stopped:
        if not stopped.code:  # after --help
            raise
        mistake = mistake_in(box.getvalue())
        raise InputError(f"{mistake}{'' if mistake.endswith('?') else '.'} See itta {verb} --help.") from None
    return call


def to_call_later(verb: Callable[..., Any], in_short: bool = False) -> Callable[..., Any]:
    """Return a function with the parameters of a verb, which gives back the call instead of making it.

    ``in_short`` leaves the first sentence of its help, for the list of all verbs.
    """

    @wraps(verb)
    def give_back(*values: Any, **named: Any) -> Any:
        return partial(verb, *values, **named)

    if in_short:
        give_back.__doc__ = (verb.__doc__ or "").partition("\n")[0]
    return give_back


def mistake_in(box: str) -> str:
    """Return the mistake that tyro shows in a box of several lines.

    >>> mistake_in('''╭─ Required options ──────────╮
    ... │ Missing from itta train:    │
    ... │     DATA                    │
    ... │         A data set by name. │
    ... │ ─────────────────────────── │
    ... │ For full helptext, see …    │
    ... ╰─────────────────────────────╯''')
    'itta train needs DATA'
    """
    first, *others = paragraphs(box)
    text = " ".join(line.strip() for line in first)
    if text.startswith("Missing from"):
        return f"{first[0].removeprefix('Missing from ').rstrip(':')} needs {' and '.join(flags_in(first))}"
    if text.startswith("Unrecognized"):
        names = [line.split()[0] for line in first[1:] if "(applied to" in line] or text.partition(": ")[2].split(", ")
        return "; ".join([f"unknown: {' '.join(names)}", *map(hint, others[:-1])])
    if text.startswith("Error parsing") and others:
        value = re.search(r"('[^']*'|\[.*\])$", text)
        return f"{flags_in(others[0])[0]} cannot be {value[1] if value else text}"
    return text.rstrip(".")


def flags_in(part: Sequence[str]) -> list[str]:
    """Return the flags that a paragraph lists, each with the name of its value."""
    return [line.strip() for line in part if re.match(r" {4}\S", line)]


def hint(part: Sequence[str]) -> str:
    """Return the flags or the words that tyro proposes instead, with the commands that have them."""
    if part[0].startswith("Available subcommands"):
        return " ".join(part).replace("Available subcommands", "choices")
    commands = [line.strip() for line in part if re.match(r" {8}in itta ", line)]
    proposed = (f"{flag.split()[0]} ({where.removesuffix(' --help')})" for flag, where in zip(flags_in(part), commands))
    return f"did you mean {', '.join(proposed)}?"


def paragraphs(box: str) -> list[list[str]]:
    """Return the lines of a box without its frame and its title, and split at its rules."""
    parts: list[list[str]] = [[]]
    for line in box.splitlines():
        inside = line[2:].rstrip(" │")
        if line.startswith(("╭", "╰")) or not inside:
            continue
        if set(inside) <= set("─-"):
            parts.append([])
        else:
            parts[-1].append(inside)
    return [part for part in parts[0 if box.startswith("╭") else 1 :] if part] or [[box.strip()]]
