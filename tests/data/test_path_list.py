"""Paths in compact form are the paths that were given."""

import os
import tracemalloc
from pathlib import Path

import pytest

from itta.data.path_list import PathList

PATHS = ["1.png", "a/1.png", "a/2.png", "a/b/é.png", os.fsdecode(b"a/caf\xe9.png"), "/abs/x y.png", "a/1.png"]


def test_it_is_the_sequence_that_was_given() -> None:
    found = PathList(PATHS[:3])
    found.extend(map(Path, PATHS[3:]))
    assert list(found) == PATHS
    assert found == PATHS
    assert found != PATHS[1:]
    assert found != [*PATHS[1:], "other"]
    assert found[2:6:2] == PATHS[2:6:2]
    assert [found[i] for i in range(-len(PATHS), len(PATHS))] == PATHS * 2
    assert PathList() == []
    for place in (len(PATHS), -len(PATHS) - 1):
        with pytest.raises(IndexError):
            found[place]


def test_readable_names_are_text() -> None:
    found = PathList(PATHS).readable()
    assert found[4] == "a/caf\\xe9.png"
    assert [found[i] for i in (0, 3)] == [PATHS[0], PATHS[3]]


def test_a_path_takes_its_name_and_few_bytes() -> None:
    """The paths are 60 characters long, the names 10."""
    folders = [f"/{'long' * 11}/{i:03}/" for i in range(20)]
    tracemalloc.start()
    try:
        found = PathList(f"{folder}{i:06}.png" for folder in folders for i in range(1000))
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert len(found[0]) == 60
    assert taken / len(found) < (10 + 12) * 1.15  # arrays that grow have some room to spare
