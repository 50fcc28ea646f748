import json

import pytest

from itta.errors import InputError
from itta.records.story import Event, Picture, Story, Stream, read_story, write_story


def make_story():
    stream = Stream(
        "sketch",
        "guarded itta",
        "itta, seed 0",
        ("cat", "dog"),
        2,
        (0, 1, 1),
        (0, 0, 1),
        (0, 0, 1),
        {"lr": 0.1},
        (Event(2, "finite", None, 0.0, "reset"),),
        (Picture("a/b.png", "data:image/png;base64,AA==", "cat", "dog", "cat"),),
        seconds={"before": 0.1, "after": 0.2},
    )
    return Story("A run", "itta adapt …", {"name": "x"}, {"itta": "1"}, (stream,))


def test_comes_back_as_it_was_written(tmp_path):
    assert read_story(write_story(tmp_path, make_story())) == make_story()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": 99, "streams": []}', '{"streams": [{"a": 1}]}'])
def test_names_a_file_that_is_none(tmp_path, text):
    path = tmp_path / "story.json"
    path.write_text(text)
    with pytest.raises(InputError, match="story.json"):
        read_story(path)


def test_a_stream_without_labels_stays_without(tmp_path):
    values = make_story().to_json()
    values["streams"][0]["labels"] = None
    assert Story.from_json(json.loads(json.dumps(values))).streams[0].labels is None
