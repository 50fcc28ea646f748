"""JSON from outside: within limits, and of the declared types."""

import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from itta.errors import InputError
from itta.schema import MAX_DEPTH, Count, Name, Share, conform, damaged, numbers_of, parse_json, read_json
from itta.trial import Trial


@dataclass(frozen=True)
class Thing:
    name: Name
    step: Count
    share: Share = 0.5
    names: tuple[str, ...] = ()
    table: dict[str, dict[str, Share]] = field(default_factory=dict)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ([], "object"),
        (None, "object"),
        ({"step": 1}, "`name`"),
        ({"name": "", "step": 1}, "name"),
        ({"name": "x" * 5000, "step": 1}, "name"),
        ({"name": 3, "step": 1}, "name"),
        ({"name": "a", "step": True}, "step"),
        ({"name": "a", "step": "1"}, "step"),
        ({"name": "a", "step": 1.5}, "step"),
        ({"name": "a", "step": -1}, "step"),
        ({"name": "a", "step": 2**60}, "step"),
        ({"name": "a", "step": 1, "share": 1.1}, "share"),
        ({"name": "a", "step": 1, "share": float("nan")}, "share"),
        ({"name": "a", "step": 1, "share": None}, "share"),
        ({"name": "a", "step": 1, "names": "abc"}, "names"),
        ({"name": "a", "step": 1, "names": [1]}, "names"),
        ({"name": "a", "step": 1, "table": {"x": {"y": "z"}}}, "table"),
        ({"name": "a", "step": 1, "shell\x1b[2J": 2}, "unknown field"),
    ],
)
def test_values_of_the_wrong_type_are_refused(values: object, told: str) -> None:
    with pytest.raises(InputError, match=told) as error:
        conform(Thing, values)
    assert "\x1b" not in str(error.value)


def test_values_of_the_right_type_come_as_declared() -> None:
    found = conform(Thing, {"name": "a", "step": 1, "names": ["b"], "table": {"x": {"y": 1}}})
    assert found == Thing("a", 1, names=("b",), table={"x": {"y": 1.0}})


@pytest.mark.parametrize(
    "data",
    [
        b"", b"{", b"NaN", b"[1e999]", b"Infinity", b'"\\ud800"', b'"\xff"', b"\xef\xbb\xbf{}", b"1" * 5000, b"[1,]",
        b"[" * 100_000, b'{"a":' * 100_000, b"[" * (MAX_DEPTH + 2) + b"]" * (MAX_DEPTH + 2),
    ],
)  # fmt: skip
def test_what_is_not_json_is_refused(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(data)
    told = r"a\.json is damaged or not ours \((not JSON|objects and lists).*: mend it\."
    with pytest.raises(InputError, match=told), damaged(tmp_path / "a.json", "mend it"):
        read_json(tmp_path / "a.json")


def test_the_deepest_json_that_is_read() -> None:
    assert parse_json(b"[" * MAX_DEPTH + b"]" * MAX_DEPTH)
    wide = json.dumps([[i] for i in range(1000)])
    assert len(parse_json(wide)) == 1000


def test_a_file_is_not_read_beyond_its_limit(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(b" " * 100 + b"1")
    assert read_json(tmp_path / "a.json", 101) == 1
    with pytest.raises(InputError, match="larger than"):
        read_json(tmp_path / "a.json", 100)


@pytest.mark.parametrize(
    "changes", [{"steps": "many"}, {"image_size": 10**6}, {"steps": 10**30}, {"train_domains": "ab"}, {"colour": 1}]
)
def test_a_trial_from_a_file_is_checked(changes: dict[str, object]) -> None:
    good = Trial("PACS", "erm", ("photo", "sketch")).to_json()
    assert Trial.from_json(json.loads(json.dumps(good))).key == Trial("PACS", "erm", ("photo", "sketch")).key
    with pytest.raises(InputError):
        Trial.from_json({**good, **changes})


def test_numbers_that_a_curve_can_show() -> None:
    assert numbers_of({"a": 1, "b": 10**400, "c": float("inf"), "d": None, "e": "1", "f": True}) == {"a": 1}
