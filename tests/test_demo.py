"""The demo from end to end, with images of half the size. examples/quickstart.py trains with those of the demo."""

import json
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

import itta.demo
from itta import records
from itta.demo import LABELS, METHODS, Settings, demo_trial, run_demo
from itta.records.story import read_story
from tests.fixtures.inline_engine import run_inline

pytestmark = pytest.mark.slow
SETTINGS = Settings(seeds=(0, 1), steps=2, batch_size=2)


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """(folder, table, files) of a very short demo with small images."""
    folder = tmp_path_factory.mktemp("demo")
    with pytest.MonkeyPatch.context() as patch:
        run_inline(patch)
        patch.setattr(itta.demo, "demo_trial", small_trial)
        yield folder, *run_demo(folder, SETTINGS)


def small_trial(settings, algorithm, seed):
    return replace(demo_trial(settings, algorithm, seed), image_size=32)


def test_the_demo_writes_what_it_names_and_trains_once(demo):
    folder, table, files = demo
    assert [row[0] for row in table.rows] == list(LABELS.values())
    assert table.columns == ["method", "seed 0", "seed 1", "mean ± s.e."]
    assert all("±" in row[-1] for row in table.rows)
    assert next(iter(files)) == "page"  # what people would open
    assert set(files) == {"page", "story", "table", "records", "styles", "stream", "summary"}
    written = files["table"].read_text(encoding="utf-8")
    assert all(f"| {name} " in written for name in LABELS.values())
    for kind in ("styles", "stream", "summary"):
        with Image.open(files[kind]) as image:
            image.load()
            assert min(image.size) > 100
    found = list(records.read(files["records"]))
    assert [(r.trial.algorithm, r.adapter) for r in found] == list(LABELS) * 2
    story = read_story(files["story"])
    assert (story.command, sum(story.data["images"].values())) == ("itta demo", 2868)
    assert [s.title for s in story.streams] == ["ITTA, seed 0", "ITTA, seed 1"]
    assert files["story"].stat().st_size < 2_000_000
    for stream, without, with_step in zip(story.streams, found[2::4], found[3::4], strict=True):
        for said, record in ((stream.before, without), (stream.after, with_step)):
            assert np.mean(np.equal(said, stream.labels)) == record.accuracy["noto-mono"]["all"]
        assert "main, after itta" in stream.cam_text

    models = [folder / "runs" / f"{m}-{s}" / "model.safetensors" for m in METHODS for s in SETTINGS.seeds]
    before = [m.stat().st_mtime_ns for m in models]
    text = files["records"].read_bytes()
    again, rest = run_demo(folder, SETTINGS, lambda name, *step: pytest.fail(f"{name} was trained again"), command=None)
    assert again == table
    assert rest.keys() == files.keys() - {"page", "story"}  # not asked for
    assert [m.stat().st_mtime_ns for m in models] == before
    assert files["records"].read_bytes() == text


def test_the_page_opens_with_the_network_off_and_tells_what_was_recorded(demo, browser):
    file, found = demo[2]["page"], list(records.read(demo[2]["records"]))
    assert file.stat().st_size < 5_000_000
    context = browser.new_context(offline=True)
    page = context.new_page()
    trouble = []
    page.on("console", lambda m: trouble.append(m.text))
    page.on("pageerror", lambda e: trouble.append(str(e)))
    page.goto(file.as_uri())
    told = json.loads(page.locator("#itta-data").text_content())
    for stream, without, with_step in zip(told["streams"], found[2::4], found[3::4], strict=True):
        assert (stream["before"], stream["after"]) == tuple(
            r.accuracy["noto-mono"]["all"] for r in (without, with_step)
        )
    shown = page.locator("body").text_content()
    assert all(f"{100 * r.accuracy['noto-mono']['all']:.1f}" in shown for r in found)
    widths = page.locator("img").evaluate_all("images => images.map(i => i.naturalWidth)")
    assert widths
    assert min(widths) > 0
    context.close()
    assert trouble == []
