"""Find a class by the name a user typed: an entry of a registry table, or the user's own as package.module:Class.

A table is a plain dict from name to class. A name that comes from a file must be in the table: a file never makes itta
import a module.
"""

import importlib
import os
import sys
from collections.abc import Mapping
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from itta.errors import InputError, first_line, unknown

Entry = TypeVar("Entry")
Class = TypeVar("Class")
OWN_CLASS = "package.module:Class"


def find_class(
    kind: str, name: str, table: Mapping[str, type[Class]], base: type[Class], file: Path | None = None
) -> type[Class]:
    """Return the class of a registered name, or import the subclass of ``base`` that the user typed.

    ``file`` is the file that holds the name, if a file does. Then only registered names count.

    >>> find_class("number", "truth", {"truth": bool}, int), find_class("number", "enum:IntFlag", {}, int)
    (<class 'bool'>, <flag 'IntFlag'>)
    """
    if ":" not in name:
        return look_up(kind, name, table, OWN_CLASS)
    if file is not None:
        raise named_by_file(kind, name, file)
    found = import_object(kind, name, OWN_CLASS)
    if not (isinstance(found, type) and issubclass(found, base)):
        raise InputError(f"the {kind} {name!r} is not a subclass of {base.__module__}.{base.__qualname__}.")
    return found


def look_up(kind: str, name: str, table: Mapping[str, Entry], *other_forms: str) -> Entry:
    """Return the entry of a registered name. The error lists all names, and other forms a name may have."""
    if name not in table:
        raise unknown(kind, name, [*table, *other_forms])
    return table[name]


def import_object(kind: str, name: str, form: str) -> object:
    """Import ``package.module:Name``, which the user typed; every failure is one line.

    >>> import_object("number", "math:pi", "package.module:Name")
    3.141592653589793
    """
    module, _, attribute = name.partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), *attribute.split("."))):
        raise InputError(f"cannot import the {kind} {name!r}: write it as {form}.")
    try:
        found = import_module(module)
    except ModuleNotFoundError as error:
        raise InputError(
            f"cannot import the {kind} {name!r}: {error}. Write it as {form}. Run the command in the folder of the "
            "module, install the package, or add its folder to PYTHONPATH."
        ) from error
    except (Exception, SystemExit) as error:  # a module of the user's own may raise anything
        raise InputError(
            f"cannot import the {kind} {name!r}: its module raised {type(error).__name__}: {first_line(error)}."
        ) from error
    try:
        return attrgetter(attribute)(found)
    except AttributeError as error:
        raise InputError(f"cannot import the {kind} {name!r}: {error}. Write it as {form}.") from error


def import_module(name: str) -> ModuleType:
    """Import an installed module, or one of the current folder, which comes last: it hides no installed package."""
    here = os.getcwd()
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name.partition(".")[0] or here in sys.path:
            raise
    sys.path.append(here)  # it stays: the module may import others of its folder later
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name == name.partition(".")[0]:
            sys.path.remove(here)
        raise


def class_name(cls: type[Any]) -> str:
    """Return the registered name of a method of ours, or package.module:Class of a user's own."""
    return str(cls.name) if cls.__module__.startswith("itta.") else f"{cls.__module__}:{cls.__qualname__}"


def named_by_file(kind: str, name: str, file: Path) -> InputError:
    """Refuse a name of the form package.module:Class that a file holds."""
    return InputError(
        f"{file} names the {kind} {name!r}, which is not in itta's table, and a file never makes itta import code. "
        f"Pass the class yourself: {kind}=YourClass in Python, --{kind} {OWN_CLASS} on the command line."
    )
