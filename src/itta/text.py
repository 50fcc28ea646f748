"""Names from outside as text: on a terminal, in a file, in a spreadsheet, and as part of a path.

A file name on Linux is any bytes. A domain in a manifest is any text. None of them may move the cursor of a terminal,
run as a formula, or lead out of a folder.
"""

import csv
import hashlib
import os
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

ESCAPED_CATEGORIES = ("Cc", "Cf", "Cs", "Zl", "Zp")  # control, format (direction marks), lone surrogates, line ends
PLAIN_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?%?")  # a spreadsheet reads it as a number
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
FORBIDDEN = frozenset('/\\:*?"<>|%')  # in a file name, here or on another system; % is our escape
MAX_FILE_NAME = 100  # bytes


def readable(name: str) -> str:
    r"""Return a file name as text that is valid UTF-8; bytes that are not UTF-8 are written as \x...

    >>> readable("caf\udce9.png"), readable("café.png")
    ('caf\\xe9.png', 'café.png')
    """
    if name.isascii():
        return name
    try:
        return os.fsencode(name).decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:  # a surrogate that no file name has
        return name.encode("utf-8", "backslashreplace").decode("utf-8")


def printable(text: str, keep: str = "") -> str:
    r"""Return text for a terminal: characters that would steer it are shown escaped, except those in ``keep``.

    >>> printable("a\x1b[2Jb\nc"), printable("a\n", keep="\n"), printable("Größe ✓")
    ('a\\x1b[2Jb\\nc', 'a\n', 'Größe ✓')
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        c if c in keep or unicodedata.category(c) not in ESCAPED_CATEGORIES else escape(c) for c in readable(text)
    )


def escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def as_file_name(name: str) -> str:
    """Return a name as one part of a path that stays in its folder; different names give different parts.

    >>> as_file_name("photo"), as_file_name("Real World"), as_file_name("../../x"), as_file_name("..")
    ('photo', 'Real World', '%2E.%2F..%2Fx', '%2E%2E')
    """
    quoted = "".join(
        "".join(f"%{byte:02X}" for byte in os.fsencode(c)) if c in FORBIDDEN or not c.isprintable() else c for c in name
    )
    if quoted.startswith((".", " ")):
        quoted = f"%{ord(quoted[0]):02X}{quoted[1:]}"
    if quoted.endswith((".", " ")):
        quoted = f"{quoted[:-1]}%{ord(quoted[-1]):02X}"
    if len(quoted.encode()) <= MAX_FILE_NAME and quoted:
        return quoted
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:20]
    return f"{''.join(c for c in quoted if c.isascii())[:40]}%{digest}"


def as_cell(value: Any) -> Any:
    """Return a value for a cell of CSV: text is `printable`, and gets a quote in front if it could be a formula.

    >>> as_cell("=1+1"), as_cell("-cat"), as_cell("+90%"), as_cell(-0.5), as_cell("cat")
    ("'=1+1", "'-cat", '+90%', -0.5, 'cat')
    """
    if not isinstance(value, str):
        return value
    if PLAIN_NUMBER.fullmatch(value):
        return value
    return f"'{printable(value)}" if value.lstrip(" ").startswith(FORMULA_STARTS) else printable(value)


def csv_writer(stream: Any, columns: Sequence[str], heading: bool = True) -> Callable[[Mapping[str, Any]], Any]:
    """Write the line of the columns, and return a function that writes one row. All CSV that itta writes comes here."""
    writer = csv.DictWriter(stream, columns, lineterminator="\n")
    if heading:
        writer.writerow({column: as_cell(column) for column in columns})
    return lambda row: writer.writerow({name: as_cell(value) for name, value in row.items()})


def write_csv(stream: Any, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Write a table as CSV."""
    write = csv_writer(stream, columns)
    for row in rows:
        write(row)
