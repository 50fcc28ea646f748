"""The demo from end to end, with images of half the size. examples/quickstart.py trains with those of the demo."""

import json
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

import itta.demo
from itta import records
from itta.demo import METHODS, ORDERS, ROWS, Settings, demo_trial, run_demo
from itta.records.story import read_story
from tests.fixtures.inline_engine import run_inline

pytestmark = pytest.mark.slow
SETTINGS = Settings(seeds=(0, 1), steps=2, batch_size=2, thinning=30)


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """(folder, table, files) of a very short demo with small images."""
    folder = tmp_path_factory.mktemp("demo")
    with pytest.MonkeyPatch.context() as patch:
        run_inline(patch)
        patch.setattr(itta.demo, "demo_trial", small_trial)
        yield folder, *run_demo(folder, SETTINGS, slots=1)


def small_trial(settings, algorithm, seed):
    return replace(demo_trial(settings, algorithm, seed), image_size=32)


def test_the_demo_writes_what_it_names_and_trains_once(demo):
    folder, table, files = demo
    labels = [row.label for row in ROWS]
    assert [row[0] for row in table.rows] == labels
    assert table.columns == ["method", *ORDERS.values()]
    assert "2 seeds" in table.title
    assert all("±" in cell for row in table.rows for cell in row[1:])
    assert next(iter(files)) == "page"  # what people would open
    assert set(files) == {"page", "story", "table", "records", "summary"}
    written = files["table"].read_text(encoding="utf-8")
    assert all(f"| {name} " in written for name in labels)
    with Image.open(files["summary"]) as image:
        image.load()
        assert min(image.size) > 500
    found = list(records.read(files["records"]))
    expected = [
        (row.algorithm, seed, order, row.adapter)
        for seed in SETTINGS.seeds
        for algorithm in METHODS
        for order in ORDERS
        for row in ROWS
        if row.algorithm == algorithm
    ]
    of_record = [(r.trial.algorithm, r.trial.trial_seed, r.stream["order"], name_inside(r)) for r in found]
    assert of_record == expected
    assert [r.adapter for r in found].count("guarded tent") == 4
    story = read_story(files["story"])
    assert (story.command, sum(story.data["images"].values())) == ("itta demo", 2868)
    assert len(story.streams) == 4  # two orders of two seeds
    assert files["story"].stat().st_size < 2_000_000
    for stream, (without, with_it) in zip(story.streams, told_records(found), strict=True):
        for said, record in ((stream.before, without), (stream.after, with_it)):
            assert np.mean(np.equal(said, stream.labels)) == record.accuracy["noto-mono"]["all"]

    models = [folder / "runs" / f"{m}-{s}" / "model.safetensors" for m in METHODS for s in SETTINGS.seeds]
    before = [m.stat().st_mtime_ns for m in models]
    text = files["records"].read_bytes()

    def trained(name, *step):
        assert name == "streams", f"{name} was trained again"

    again, rest = run_demo(folder, SETTINGS, trained, command=None, slots=2)  # two processes answer as one does
    assert again == table
    assert rest.keys() == files.keys() - {"page", "story"}  # not asked for
    assert [m.stat().st_mtime_ns for m in models] == before
    assert files["records"].read_bytes() == text


def name_inside(record):
    """The adapter's name without its guard."""
    return record.adapter.removeprefix("guarded ")


def told_records(found):
    """The records of ERM without and with itta+, of each seed and order."""
    erm = [r for r in found if r.trial.algorithm == "erm"]
    return zip((r for r in erm if r.adapter == "source"), (r for r in erm if r.adapter == "guarded itta+"), strict=True)


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
    for stream, pair in zip(told["streams"], told_records(found), strict=True):
        assert (stream["before"], stream["after"]) == tuple(r.accuracy["noto-mono"]["all"] for r in pair)
    shown = page.locator("body").text_content()
    assert all(f"{100 * r.accuracy['noto-mono']['all']:.1f}" in shown for r in found)
    widths = page.locator("img").evaluate_all("images => images.map(i => i.naturalWidth)")
    assert widths
    assert min(widths) > 0
    context.close()
    assert trouble == []
