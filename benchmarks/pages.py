"""Text on a page of the documentation that a command writes: between two comments, or in rows of a table."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from itta.errors import InputError
from itta.files import replace_text

END = "<!-- end of tables -->"


def start_of(command: str) -> str:
    return f"<!-- tables: python -m benchmarks.{command} -->"


def write_between(path: Path, command: str, text: str) -> None:
    replace_text(path, fill(path.read_text(), start_of(command), text))


def fill(page: str, start: str, text: str) -> str:
    """Replace the text between the two comments of a page.

    >>> fill(f"a <!-- b --> old {END} c", "<!-- b -->", "new").split("\\n")
    ['a <!-- b -->', '', 'new', '', '<!-- end of tables --> c']
    """
    if start not in page or END not in page:
        raise InputError(f"the page needs the lines {start} and {END}.")
    return page[: page.index(start)] + f"{start}\n\n{text.strip()}\n\n{END}" + page[page.index(END) + len(END) :]


def replace_rows(page: str, rows: Mapping[str, str]) -> str:
    """Replace the rows of a Markdown table that begin with these cells.

    >>> replace_rows("| a | 1 |\\n| b | 2 |", {"b": "| b | 3 |"})
    '| a | 1 |\\n| b | 3 |'
    """
    lines = page.split("\n")
    for first, row in rows.items():
        found = [i for i, line in enumerate(lines) if line.startswith(f"| {first} |")]
        if len(found) != 1:
            raise InputError(f"the page needs one row of a table that begins with {first!r}, and has {len(found)}.")
        lines[found[0]] = row
    return "\n".join(lines)


def meaning(sentences: Iterable[str]) -> str:
    """The sentences below a table: one that says what it means, then a list.

    >>> meaning(["No method gains.", "One loses."])
    'No method gains.\\n\\n- One loses.'
    """
    first, *others = sentences
    return "\n\n".join([first, *(["\n".join(f"- {other}" for other in others)] if others else [])])
