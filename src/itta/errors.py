"""The one exception for mistakes that a user can mend, and the one warning."""


class InputError(ValueError):
    """A mistake in what the user gave us, told in one line: what was expected, what came, what to do.

    The command line prints its message without a traceback; everything else that escapes is a bug of ours.
    """


class InputWarning(UserWarning):
    """Something the user may want to mend, told in one line, while the work goes on without it."""


def unknown(kind: str, name: str, choices: "list[str] | tuple[str, ...]") -> InputError:
    """Name the wrong choice, the nearest right one and all of them."""
    from difflib import get_close_matches

    close = get_close_matches(name, choices, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return InputError(f"unknown {kind} {name!r}.{hint} Choices: {', '.join(choices)}.")
