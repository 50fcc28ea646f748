"""Many paths in little memory: the name of a folder is kept once, and all names of files are one string of bytes."""

import os
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import overload

from itta.text import readable


class PathList(Sequence[str]):
    """Paths as text, in the given order. Each takes the bytes of its name and 12 more, if folders hold many files.

    >>> paths = PathList(["cats/1.png", "cats/2.png", "dog.png"])
    >>> paths[1], paths[-1], len(paths), paths == ["cats/1.png", "cats/2.png", "dog.png"]
    ('cats/2.png', 'dog.png', 3, True)
    """

    def __init__(self, paths: Iterable[str | os.PathLike[str]] = ()) -> None:
        self._folders: list[str] = []  # each with its last separator, in the order of their first file
        self._folder = array("i")  # of each file, its place in the list
        self._ends = array("q")  # of each name in the bytes
        self._names = bytearray()
        self._show: Callable[[str], str] = str
        self.extend(paths)

    def extend(self, paths: Iterable[str | os.PathLike[str]]) -> None:
        """Add paths. Files of one folder should come together: a folder that returns is kept again."""
        for given in paths:
            path = os.fspath(given)
            cut = path.rfind(os.sep) + 1
            folder, name = path[:cut], path[cut:]
            if not self._folders or self._folders[-1] != folder:
                self._folders.append(folder)
            self._names += os.fsencode(name)
            self._folder.append(len(self._folders) - 1)
            self._ends.append(len(self._names))

    def readable(self) -> "PathList":
        """Return the same paths as text that is valid UTF-8. Both share their memory."""
        shown = PathList()
        vars(shown).update(vars(self), _show=readable)
        return shown

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> list[str]: ...
    def __getitem__(self, place: int | slice) -> str | list[str]:
        if isinstance(place, slice):
            return [self[i] for i in range(len(self))[place]]
        place = range(len(self))[place]
        start = self._ends[place - 1] if place else 0
        name = os.fsdecode(bytes(self._names[start : self._ends[place]]))
        return self._show(self._folders[self._folder[place]] + name)

    def __iter__(self) -> Iterator[str]:
        return (self[i] for i in range(len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other))

    __hash__ = None  # type: ignore[assignment]
