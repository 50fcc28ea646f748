"""The story of a run: what it tells agrees with the records, the predictions and the images themselves."""

import base64
import csv
import io
import json
import math
import shlex
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from itta import records
from itta.adapters import adapt
from itta.cli import main
from itta.data.target import Target, open_target
from itta.explain import pictures
from itta.explain.adapted_stream import AdaptedStream, diagnosis_of
from itta.explain.run_story import guard_events, tell_diagnosis, tell_stream, write_run_page
from itta.metrics.outcome import Outcome
from itta.records.story import Story, Stream, read_story
from itta.store.model import load, read_description

pytestmark = pytest.mark.slow

RESTLESS = (
    "--adapter",
    "itta",
    "--set",
    "lr=0.1",
    "scope=all",
    "optimizer=adam",
    "--batch-size",
    "4",
)  # so that answers change


@pytest.fixture(scope="module")
def good(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that has learned its task."""
    out = tmp_path_factory.mktemp("trained") / "good"
    tiny = ["--backbone", "small_cnn", "--weights", "none", "--image-size", "16", "--steps", "30"]
    words = ["train", ".", "--target", "night", *tiny, "--out", str(out), "--set", "batch_size=4", "lr=3e-3"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(photos)  # a run's seed depends on what its data is called
        assert main(words) == 0
    return out


@pytest.fixture(scope="module")
def mixed(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every second image lies in the wrong class, so that to change an answer is right as often as wrong."""
    root = tmp_path_factory.mktemp("mixed")
    other = {"across": "down", "down": "across"}
    for path in photos.rglob("*.png"):
        domain, label = path.parts[-3:-1]
        folder = root / domain / (other[label] if int(path.stem) % 2 else label)
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, folder / f"{label}-{path.name}")
    return root


@pytest.fixture(scope="module")
def run(good: Path, mixed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adaptation that helped some images and hurt others."""
    out = tmp_path_factory.mktemp("adapted") / "out"
    words = ["adapt", good, mixed, "--domain", "night", "noon", *RESTLESS, "--out", out, "--json"]
    assert main([str(w) for w in words]) == 0
    return out


@pytest.fixture(scope="module")
def story(run: Path) -> Story:
    return read_story(run / "story.json")


@pytest.fixture(scope="module")
def rows(run: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((run / "predictions.csv").open(newline="")))


def decode(uri: str) -> np.ndarray:
    head, _, body = uri.partition(",")
    assert head in ("data:image/png;base64", "data:image/jpeg;base64")
    with Image.open(io.BytesIO(base64.b64decode(body, validate=True))) as image:
        return np.asarray(image.convert("RGB")).astype(float)


def test_the_stream_is_what_the_predictions_and_records_say(run: Path, story: Story, rows: list[dict[str, str]]):
    (stream,) = story.streams
    assert stream.classes == ("across", "down")
    for name, values in (("before", stream.before), ("after", stream.after), ("label", stream.labels)):
        assert [stream.classes[i] for i in values or ()] == [row[name] for row in rows]
    assert stream.before != stream.after
    for record, said in zip(records.read(run / "records.jsonl"), (stream.before, stream.after), strict=True):
        right = {"night": [], "noon": []}
        for row, a, b in zip(rows, said, stream.labels or ()):
            right[row["image"].split("/")[0]].append(a == b)
        assert {d: of["all"] for d, of in record.accuracy.items()} == {d: np.mean(r) for d, r in right.items()}
        assert record.logs["seconds_per_image"] == stream.seconds["before" if said is stream.before else "after"]
    assert (stream.target, stream.adapter, stream.batch_size) == ("night + noon", "itta", 4)
    assert stream.settings["lr"] == 0.1
    assert stream.events == ()


def test_pictures_are_those_images_and_did_change(story: Story, rows: list[dict[str, str]], mixed: Path):
    (stream,) = story.streams
    by_name = {row["image"]: row for row in rows}
    kinds = []
    for p in stream.pictures:
        row = by_name[p.name]
        assert (p.label, p.before, p.after) == (row["label"], row["before"], row["after"])
        assert p.before != p.after
        kinds.append("helped" if p.after == p.label else "hurt")
        assert p.before == p.label or p.after == p.label  # of two classes
        domain, _, path = p.name.partition("/")
        with Image.open(path) as file:
            assert Path(path).parent.parent == mixed / domain
            expected = np.asarray(file.convert("RGB").resize((16, 16), Image.Resampling.BILINEAR)).astype(float)
        found = decode(p.data)
        assert found.shape == (16, 16, 3)
        others = [decode(q.data) for q in stream.pictures if q.name != p.name]
        assert np.abs(found - expected).mean() < min(20, *(np.abs(o - expected).mean() for o in others))
    changed = [row for row in rows if row["before"] != row["after"]]
    assert sorted(p.name for p in stream.pictures) == sorted(row["image"] for row in changed)
    assert kinds == sorted(kinds)  # helped, then hurt
    assert set(kinds) == {"helped", "hurt"}


def test_the_story_says_what_was_run(story: Story, run: Path, good: Path, mixed: Path):
    assert story.title == "itta on night + noon"
    assert story.streams[0].title == "good (itta, seed 0)"
    typed = shlex.split(story.command)
    assert typed[:4] == ["itta", "adapt", str(good), str(mixed)]
    assert typed[-3:] == ["--out", str(run), "--json"]
    assert story.data == {
        "name": mixed.name,
        "domains": ["night", "noon"],
        "images": {"night": 12, "noon": 12},
        "classes": ["across", "down"],
    }
    assert story.versions["torch"] == torch.__version__
    assert set(story.versions) == {"itta", "torch", "numpy", "python", "platform"}


def test_the_command_repeats_the_run(story: Story, run: Path, tmp_path: Path):
    words = shlex.split(story.command)[1:]
    words[words.index(str(run))] = str(tmp_path / "again")
    assert main(words) == 0
    again = read_story(tmp_path / "again" / "story.json").streams[0]
    assert replace(again, seconds={}) == replace(story.streams[0], seconds={})


def test_maps_of_changed_images_before_and_after(story: Story, rows: list[dict[str, str]]):
    (stream,) = story.streams
    height, width, _ = decode(stream.cam).shape
    assert 1.1 < width / height < 1.8  # an input, four losses and the adapted network; four rows
    assert width <= pictures.GRID_WIDTH
    assert len(stream.cam) < 250_000
    assert "input, main, learned, plain, entropy, main, after itta." in stream.cam_text
    changed = [row for row in rows if row["before"] != row["after"]]
    shown = pictures.spread_evenly(np.arange(len(changed)), 4)
    for i in shown:
        said = f"{changed[i]['label']}, said: {changed[i]['before']} → {changed[i]['after']}"
        assert f"{Path(changed[i]['image']).name}: {said}" in stream.cam_text


def test_without_labels_changed_images_are_shown_all_the_same(good: Path, photos: Path, tmp_path: Path):
    flat = tmp_path / "flat"
    flat.mkdir()
    for i, path in enumerate(sorted((photos / "night").rglob("*.png"))):
        shutil.copy(path, flat / f"{i}.png")
    assert main(["adapt", str(good), str(flat), *RESTLESS, "--out", str(tmp_path / "out")]) == 0
    (stream,) = read_story(tmp_path / "out" / "story.json").streams
    assert stream.labels is None
    changed = [n for n, (b, a) in enumerate(zip(stream.before, stream.after)) if b != a]
    assert len(changed) == len(stream.pictures) > 0
    assert all(p.label is None and p.before != p.after for p in stream.pictures)
    assert "class that the trained model chose" in stream.cam_text


def test_what_the_guard_did_is_told(model: Path, photos: Path, tmp_path: Path):
    ruinous = [
        "--adapter",
        "itta",
        "--guard",
        "--set",
        "lr=1e30",
        "optimizer=sgd",
        "--batch-size",
        "2",
        "--out",
        str(tmp_path),
    ]
    assert main(["adapt", str(model), str(photos / "night"), *ruinous]) == 0
    (stream,) = read_story(tmp_path / "story.json").streams
    assert stream.adapter == "guarded itta"
    assert stream.events[0].action == "reset"  # an adapter begins on probation
    assert all(e.image % 2 == 0 for e in stream.events)  # where a batch begins
    assert sum(stream.settings["interventions"].values()) == len(stream.events)
    finite = [e for e in stream.events if e.watch == "finite"]
    assert finite
    assert all(e.value is None for e in finite)


def test_images_that_are_not_finite_are_told(model: Path):
    guard = adapt(load(model), "itta", guard=True)
    x = torch.rand(4, 3, 16, 16)
    guard(x)
    x[2] = math.nan
    guard(x)
    (event,) = guard_events(guard)
    assert (event.image, event.watch, event.value, event.action) == (4, "non-finite image", 1.0, "left out")


def outcome(labels: np.ndarray, said: np.ndarray) -> Outcome:
    order = np.arange(len(labels))[::-1]
    return Outcome(order, labels[order], said, np.full(len(labels), 0.5), seconds=1.0)


def test_helped_hurt_and_otherwise_each_spread_over_the_stream():
    rng = np.random.default_rng(0)
    labels, before, after = rng.integers(4, size=(3, 2000))
    b, a = outcome(labels, before), outcome(labels, after)
    places = pictures.choose_changed(b, a, True)
    assert len(places) == 24 + 24 + 12 == len(set(places.tolist()))
    helped, hurt, otherwise = places[:24], places[24:48], places[48:]
    assert a.correct[helped].all()
    assert b.correct[hurt].all()
    assert not (a.correct | b.correct)[otherwise].any()
    assert (before != after)[places].all()
    for kind in (helped, hurt, otherwise):
        assert (np.diff(kind) > 0).all()
        assert kind[0] < 100 < 1900 < kind[-1]
    assert len(pictures.choose_changed(b, a, False)) == 48
    assert not len(pictures.choose_changed(b, b, True))


class ManyImages:
    """Many noisy images, of which it notes those that were read."""

    def __init__(self, labels: np.ndarray, size: int) -> None:
        self.labels, self.size, self.groups, self.was_read = labels, size, None, 0
        self.names = [f"image {i}" for i in range(len(labels))]

    def __len__(self) -> int:
        return len(self.labels)

    def read(self, indices: np.ndarray) -> torch.Tensor:
        self.was_read += len(indices)
        return torch.randint(256, (len(indices), 3, self.size, self.size), dtype=torch.uint8)


def test_ten_thousand_images_are_told_quickly_and_in_little(model: Path):
    rng = np.random.default_rng(0)
    labels, before, after = rng.integers(2, size=(3, 10_000))
    images, trained = ManyImages(labels, 16), load(model)
    target = Target("many", images, np.arange(10_000), True)
    start = time.process_time()
    outcomes = outcome(labels, before), outcome(labels, after)
    told = tell_stream(AdaptedStream(trained, target, adapt(trained, "itta"), *outcomes, batch_size=32), "")
    text = json.dumps(Story("", "", streams=(told,)).to_json())
    assert time.process_time() - start < 15
    assert len(text) < 1_000_000
    assert images.was_read == 24 + 24 + 4
    assert len(told.after) == 10_000


def test_a_large_image_becomes_small_and_a_small_one_stays():
    pixels = np.random.default_rng(0).integers(256, size=(224, 224, 3), dtype=np.uint8)
    assert decode(pictures.thumbnail(pixels)).shape == (96, 96, 3)
    assert (decode(pictures.thumbnail(pixels[:4, :4])) == pixels[:4, :4]).all()  # PNG, being smaller
    smooth = np.broadcast_to(np.arange(0, 192, 2, dtype=np.uint8)[:, None, None], (96, 96, 3)).copy()
    smooth += pixels[:96, :96] // 32
    assert pictures.thumbnail(smooth).startswith("data:image/jpeg")
    assert np.abs(decode(pictures.thumbnail(smooth)) - smooth).mean() < 4


def test_a_stream_of_itta_plus_is_told_with_its_diagnosis(model: Path, photos: Path):
    trained = load(model)
    adapter = adapt(trained, "itta+")
    for seed in range(3):
        adapter(torch.rand(5, 3, 16, 16, generator=torch.Generator().manual_seed(seed)))
    found, expected = tell_diagnosis(adapter), diagnosis_of(adapter)
    assert found is not None
    assert expected is not None
    assert [entry.images for entry in found.history] == [5, 10, 15]
    assert (found.prior, found.changed) == (expected["prior"], expected["changed"])
    assert tell_diagnosis(adapt(trained, "t3a")) is None


def stream_of(model: Path, photos: Path, adapter: str, **settings: object) -> Stream:
    trained, target = load(model), open_target(str(photos), read_description(model).expected, "night")
    same = outcome(target.images.labels, np.zeros(12, dtype=np.int64))
    return tell_stream(AdaptedStream(trained, target, adapt(trained, adapter, **settings), same, same, 4), "")


@pytest.mark.parametrize(("adapter", "settings"), [("t3a", {}), ("itta", {"episodic": True}), ("source", {})])
def test_a_network_that_stays_as_it_was_is_not_drawn_again(model: Path, photos: Path, adapter, settings):
    stream = stream_of(model, photos, adapter, **settings)
    assert stream.cam
    assert "after" not in stream.cam_text
    assert "a row of maps for each of 4 images" in stream.cam_text.lower()
    assert stream.pictures == ()


def test_where_no_maps_can_be_made_the_story_says_why(model: Path, photos: Path, monkeypatch):
    from itta.nn.small_cnn import SmallCNN

    monkeypatch.setattr(SmallCNN, "block_shapes", lambda self, size: dict.fromkeys(self.block_names, (5, 7)))
    stream = stream_of(model, photos, "itta")
    assert stream.cam == ""
    assert "tokens" in stream.cam_text
    assert len(stream.after) == 12


def test_what_goes_wrong_is_a_warning_and_costs_no_result(model: Path, photos: Path, tmp_path: Path, capsys):
    (tmp_path / "story.json").mkdir()  # in the way
    assert main(["adapt", str(model), str(photos / "night"), "--json", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr()
    assert printed.err.startswith("itta: warning: no page of the run was made (InputError: ")
    assert printed.err.count("\n") == 1
    files = {Path(f).name for f in json.loads(printed.out)["files"]}
    assert files == {"predictions.csv", "records.jsonl", "stream.png"}
    assert all((tmp_path / f).is_file() for f in files)


def test_an_old_page_does_not_outlive_its_results(tmp_path: Path):
    (tmp_path / "page.html").write_text("of an earlier run")

    def fail() -> Story:
        raise MemoryError

    with pytest.warns(UserWarning, match="no page"):
        assert write_run_page(tmp_path, fail) == []
    assert not (tmp_path / "page.html").exists()


def test_a_training_tells_its_data_and_its_command(model: Path, photos: Path):
    story = read_story(model / "story.json")
    assert story.streams == ()
    assert story.title == "itta trained on dawn, noon"
    assert shlex.split(story.command)[:5] == ["itta", "train", str(photos), "--target", "night"]
    assert story.data["images"] == {"dawn": 12, "noon": 12, "night": 12}


def test_without_a_page_there_is_none(
    train: Callable[..., int], model: Path, photos: Path, tmp_path: Path, run_itta: Callable[..., str]
):
    assert train(tmp_path / "run", "--no-page", "--algorithm", "erm") == 0
    assert (tmp_path / "run" / "model.json").is_file()
    run_itta("adapt", model, photos / "night", "--no-page", "--out", tmp_path / "out")
    assert (tmp_path / "out" / "records.jsonl").is_file()
    for folder in ("run", "out"):
        assert not {"story.json", "page.html"} & {p.name for p in (tmp_path / folder).iterdir()}


def test_jobs_of_a_sweep_have_no_page(make_job: Callable, tmp_path: Path):
    from itta.run.job import perform

    perform(make_job(tmp_path / "job", ("t3a",)))
    assert (tmp_path / "job" / "model.json").is_file()
    assert not (tmp_path / "job" / "story.json").exists()
