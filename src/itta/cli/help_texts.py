"""Help texts in plain words: switches are on or off, and a flag without a default shows none."""

import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from tyro.conf import FlagCreatePairsOff, arg

T = TypeVar("T", bound=Callable[..., Any])
make_hint: Any = arg
only_on: Any = FlagCreatePairsOff
ANNOTATED: set[Any] = set()  # functions and dataclasses that have their help texts


def in_plain_words(verb: T) -> T:
    """Annotate the parameters of a verb, and the fields of its groups of flags, with their help texts."""
    parameters = inspect.signature(verb).parameters
    annotate(verb, {name: p.default for name, p in parameters.items() if p.default is not p.empty})
    return verb


def annotate(owner: Any, defaults: dict[str, Any]) -> None:
    """Put what tyro reads into the annotations of a function or of a dataclass, once."""
    if owner in ANNOTATED:
        return
    ANNOTATED.add(owner)
    for name, hint in get_type_hints(owner, include_extras=True).items():
        plain = get_args(hint)[0] if get_origin(hint) is Annotated else hint
        if is_dataclass(plain) and isinstance(plain, type):
            given = vars(defaults[name]) if name in defaults else {}
            annotate(plain, {f.name: f.default for f in fields(plain) if f.default is not MISSING} | given)
        elif name not in defaults and get_origin(plain) is tuple and get_origin(hint) is Annotated:
            owner.__annotations__[name] = Annotated[hint, make_hint(help_behavior_hint="(required)")]  # not "default: "
        elif name in defaults:
            words = default_in_words(defaults[name])
            name_of_value = "" if has_own_name(hint) else value_name(plain)
            known = {} if words is None else {"help_behavior_hint": words}
            if name_of_value:
                known["metavar"] = name_of_value
            if known:
                flag: Any = Annotated[hint, make_hint(**known)]
                if defaults[name] is False:  # no --no-json beside --json
                    flag = only_on[flag]
                owner.__annotations__[name] = flag


def has_own_name(hint: Any) -> bool:
    """Tell whether a verb itself names the value of a parameter."""
    return (
        any(getattr(mark, "metavar", None) for mark in get_args(hint)[1:]) if get_origin(hint) is Annotated else False
    )


def default_in_words(default: Any) -> str | None:
    """Write a default that tyro would write as Python has it; None leaves it to tyro.

    >>> default_in_words(True), default_in_words(()), default_in_words(3)
    ('(default: on)', '', None)
    """
    if isinstance(default, bool):
        return f"(default: {'on' if default else 'off'})"
    return "" if default is None or default == () or default == "" else None


def value_name(hint: Any) -> str:
    """Name the value of a flag that may be left out: PATH instead of {None}|PATH.

    >>> value_name(str | None), value_name(int)
    ('STR', '')
    """
    if get_origin(hint) in (Union, UnionType) and NoneType in get_args(hint):
        (kind,) = (a for a in get_args(hint) if a is not NoneType)
        return str(getattr(kind, "__name__", kind)).upper()
    return ""
