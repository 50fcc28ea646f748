"""Draw the rooms of the package and the walks through them, from the lists in docs/architecture.md.

`tools/build_docs.py` calls `draw`. The picture is an SVG without a background, so that it fits light and dark pages.
"""

import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

WIDTH, MARGIN, GAP = 760, 48, 12  # pixels
BADGE = 24  # pixels from one number to the next
COLOURS = ("#3949ab", "#e65100")  # of the walks


class Hop(NamedTuple):
    caller: str  # cli/train
    callee: str  # run/train


def read_floors(page: str) -> list[list[str]]:
    """Read who stands above whom: the numbered list below the heading "Who may import whom"."""
    return [re.findall(r"`(\w+)`", line) for line in numbered(section(page, "## Who may import whom"))]


def read_walks(page: str) -> dict[str, list[Hop]]:
    """Read the hops of each walk by its command: the numbered lists below the headings that name a command."""
    commands = re.findall(r"^### `(itta \w+)`$", page, re.M)
    return {command: [read_hop(line) for line in numbered(section(page, f"### `{command}`"))] for command in commands}


def read_hop(line: str) -> Hop:
    found = re.fullmatch(r"`([\w/]+)` → `([\w/]+)`: .*", line)
    if not found:
        raise ValueError(f"a hop is written `caller` → `callee`: what happens. Got {line!r}.")
    return Hop(*found.groups())


def section(page: str, heading: str) -> str:
    """The text between a heading and the next one."""
    return re.split(r"^#", page.split(f"\n{heading}\n")[1], maxsplit=1, flags=re.M)[0]


def numbered(text: str) -> list[str]:
    return re.findall(r"^\d+\. (.*)$", text, re.M)


def room_of(module: str) -> str:
    return module.partition("/")[0]


def draw(page: str) -> str:
    """Return the picture as the text of an SVG file."""
    floors, walks = read_floors(page), read_walks(page)
    parts, y = [legend(list(walks))], 44
    for number, floor in enumerate(floors):
        width = min(210, (WIDTH - MARGIN - GAP * (len(floor) - 1)) // len(floor))
        left = MARGIN + (WIDTH - MARGIN - len(floor) * width - GAP * (len(floor) - 1)) // 2
        badges = [in_rows(entries(room, walks), width) for room in floor]
        height = 36 + BADGE * max(map(len, badges))
        for i, (room, rows) in enumerate(zip(floor, badges)):
            parts.append(box(room, rows, left + i * (width + GAP), y, width, height))
        y += height + (GAP if number + 1 < len(floors) else 0)
    parts.append(arrow(44, y))
    view = f'viewBox="0 0 {WIDTH + 2} {y + 6}" font-family="system-ui, sans-serif"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {view}>'
    return "\n".join([head, f"<title>{escape('Rooms of itta and ' + ' and '.join(walks))}</title>", *parts, "</svg>\n"])


def entries(room: str, walks: Mapping[str, Sequence[Hop]]) -> list[list[int]]:
    """For each walk, the numbers of the hops that end in a room."""
    return [[n for n, hop in enumerate(hops, 1) if room_of(hop.callee) == room] for hops in walks.values()]


def in_rows(numbers: Sequence[Sequence[int]], width: int) -> list[list[tuple[int, str]]]:
    """Give each number the colour of its walk: all in one row where they fit, else a row for each walk."""
    rows = [[(n, colour) for n in of_walk] for of_walk, colour in zip(numbers, COLOURS) if of_walk]
    together = [coloured for row in rows for coloured in row]
    return [together] if together and BADGE * len(together) < width else rows


def box(room: str, rows: Sequence[Sequence[tuple[int, str]]], x: int, y: int, width: int, height: int) -> str:
    lines = [
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="8" fill="#e3e8f8" stroke="#7986cb"/>',
        text(x + width / 2, y + 24, room, 17 if width > 110 else 14, "#1f2554", 600),
    ]
    for row, badges in enumerate(rows):
        left = x + width / 2 - BADGE * (len(badges) - 1) / 2
        lines += [badge(left + BADGE * i, y + 45 + BADGE * row, *coloured) for i, coloured in enumerate(badges)]
    return "\n".join(lines)


def badge(x: float, y: float, number: int, colour: str) -> str:
    return f'<circle cx="{x:g}" cy="{y}" r="11" fill="{colour}"/>' + text(x, y + 4.5, str(number), 13, "#ffffff", 600)


def legend(commands: Sequence[str]) -> str:
    lines = []
    for i, (command, colour) in enumerate(zip(commands, COLOURS)):
        x = MARGIN + 10 + 150 * i
        lines += [badge(x, 20, 1, colour), text(x + 18, 25, command, 16, "#7c8597", 400, "start")]
    return "\n".join(lines)


def arrow(top: int, bottom: int) -> str:
    middle = (top + bottom) / 2
    line = f'<path d="M14 {top} V{bottom - 4} m-6 -9 l6 9 l6 -9" fill="none" stroke="#7c8597" stroke-width="2"/>'
    words = text(0, 0, "a room may import the rooms below it", 15, "#7c8597")
    return f'{line}\n<g transform="translate(36 {middle:g}) rotate(-90)">{words}</g>'


def text(x: float, y: float, words: str, size: int, colour: str, weight: int = 400, anchor: str = "middle") -> str:
    style = f'font-size="{size}" font-weight="{weight}" fill="{colour}" text-anchor="{anchor}"'
    return f'<text x="{x:g}" y="{y:g}" {style}>{escape(words)}</text>'
