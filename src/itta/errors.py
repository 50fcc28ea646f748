"""The exception for mistakes that a user can fix, and the warning for those that stop nothing."""


class InputError(ValueError):
    """A mistake in the user's input. Its one line says what was expected, what came, and what to do.

    The command line prints the line without a traceback. Any other exception that reaches the user is a bug of ours.
    """


class InputWarning(UserWarning):
    """A problem with the user's input that does not stop the work, in one line."""


def unknown(kind: str, name: str, choices: "list[str] | tuple[str, ...]") -> InputError:
    """Return an error that names the wrong choice, the nearest right one, and all choices.

    >>> print(unknown("adapter", "tint", ["tent", "itta"]))
    unknown adapter 'tint'. Did you mean 'tent'? Choices: tent, itta.
    """
    from difflib import get_close_matches

    close = get_close_matches(name, choices, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return InputError(f"unknown {kind} {name!r}.{hint} Choices: {', '.join(choices)}.")


def last_line(error: BaseException) -> str:
    """Return the last line of an error's message, where torch names the tensor that does not fit."""
    return (str(error).strip().splitlines() or [type(error).__name__])[-1].strip()[:200]


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, cut to 200 characters, or the error's type if it has no message."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
