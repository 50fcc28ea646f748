"""Pages as text: what is in them, what is escaped, what is refused; and how large and slow they get."""

import json
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from itta import records
from itta.cli import main
from itta.errors import InputError
from itta.records import Record
from itta.records.story import Picture, Story, Stream, write_story
from itta.report.page.document import write_page
from itta.report.page.page_inputs import read_inputs

Make = Callable[..., list[Record]]
EVIL = "<script>alert(1)</script>\"'&</style><img src=x onerror=alert(1)>"


def page_of(folder: Path, *stories: Story) -> str:
    for i, story in enumerate(stories):
        (folder / f"story-{i}").mkdir()
        write_story(folder / f"story-{i}", story)
    return write_page(folder / "page.html", [folder]).read_text(encoding="utf-8")


def numbers(page: str) -> dict:
    (text,) = re.findall(r'<script type="application/json" id="itta-data">(.*?)</script>', page, re.S)
    return json.loads(text)


def test_names_stay_text(tmp_path: Path, a_stream: Callable[..., Stream], a_story: Callable[..., Story]) -> None:
    stream = a_stream(
        EVIL, target=EVIL, adapter=EVIL, classes=(EVIL, "dog", "elk"), settings={EVIL: EVIL}, cam_text=EVIL
    )
    pictures = tuple(replace(p, name=EVIL, label=EVIL, before=EVIL) for p in stream.pictures)
    story = a_story(replace(stream, pictures=pictures))
    page = page_of(tmp_path, replace(story, title=EVIL, command=EVIL, data={EVIL: EVIL}, versions={EVIL: EVIL}))
    assert page.count("<script") == page.count("</script>") == 2  # the numbers and ours
    assert page.count("</style>") == 1
    assert "onerror=alert(1)>" not in page
    assert numbers(page)["streams"][0]["title"] == EVIL


@pytest.mark.parametrize(
    "data",
    ["", "page.png", "https://example.com/a.png", "javascript:alert(1)", "data:text/html;base64,AAAA",
     "data:image/svg+xml;base64,AAAA", 'data:image/png;base64,AA"onerror="alert(1)', "data:image/png;base64,AAAA\n"],
)  # fmt: skip
def test_pictures_are_pictures(
    tmp_path: Path, a_stream: Callable[..., Stream], a_story: Callable[..., Story], data: str
) -> None:
    with pytest.raises(InputError, match=r"story\.json.*'a' is not a picture"):
        page_of(tmp_path, a_story(a_stream(pictures=(Picture("a", data, "cat", "dog", "cat"),))))


def test_maps_are_a_picture(tmp_path: Path, a_stream: Callable[..., Stream], a_story: Callable[..., Story]) -> None:
    with pytest.raises(InputError, match="'the grid of maps' is not a picture"):
        page_of(tmp_path, a_story(a_stream(cam="data:text/html;base64,AAAA")))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"after": (0, 1)}, "8 answers before, 2 after, 8 labels"),
        ({"labels": (0,)}, "8 answers before, 8 after, 1 labels"),
        ({"classes": ("cat", "dog")}, "beyond its 2 classes"),
        ({"before": (-1,) * 8}, "beyond its 3 classes"),
        ({"before": (), "after": (), "labels": ()}, "no images"),
    ],
)
def test_stories_that_do_not_agree_with_themselves(
    tmp_path: Path, a_stream: Callable[..., Stream], a_story: Callable[..., Story], changes: dict, problem: str
) -> None:
    with pytest.raises(InputError, match=problem):
        page_of(tmp_path, a_story(a_stream(**changes)))


def test_nothing_to_tell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path), "--html", str(tmp_path / "page.html")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"no records and no story in {tmp_path}: name a folder" in line
    assert not (tmp_path / "page.html").exists()


def test_the_command_prints_the_path_alone(
    tmp_path: Path, made: Make, a_story: Callable[..., Story], run_itta: Callable[..., str]
) -> None:
    out = tmp_path / "new" / "page.html"
    records.write_all(tmp_path / "records.jsonl", made("erm", adapted={"t3a": 0.6}))
    write_story(tmp_path, a_story())
    assert run_itta("report", tmp_path, "--html", out) == f"{out}\n"
    cells = json.loads(run_itta("report", tmp_path, "--json"))["cells"]
    assert numbers(out.read_text(encoding="utf-8"))["results"] == cells
    told = json.loads(run_itta("report", tmp_path, "--html", out, "--json", "--where", "algorithm=erm"))
    assert told == {"table": "found", "cells": cells, "notes": [], "comparisons": [], "figures": [], "html": str(out)}


def test_the_commands_options_reach_the_page(tmp_path: Path, made: Make, run_itta: Callable[..., str]) -> None:
    found = [r for a in ("erm", "irm") for seed in range(2) for r in made(a, seed=seed, accuracy=0.5 + seed / 10)]
    records.write_all(tmp_path / "records.jsonl", found)
    out, table = tmp_path / "page.html", tmp_path / "table.md"
    flags = ["--table", "pacs", "--beside-paper", "--compare", "ERM", "--out", table]
    assert run_itta("report", tmp_path / "records.jsonl", "--html", out, *flags) == f"{out}\n"
    page = out.read_text(encoding="utf-8")
    assert "ERM, paper" in page
    assert "Difference from ERM in points" in page
    assert "| ERM, paper" in table.read_text(encoding="utf-8")


def test_a_story_alone_makes_a_page(
    tmp_path: Path, a_story: Callable[..., Story], run_itta: Callable[..., str]
) -> None:
    path = write_story(tmp_path, a_story())
    run_itta("report", path, "--html", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "50.0 → 62.5 % (+12.5 points) on 8 images" in page
    assert "itta adapt runs/pacs PACS --domain sketch" in page
    assert numbers(page)["results"] == []


def test_records_alone_make_a_page(tmp_path: Path, made: Make) -> None:
    records.write_all(tmp_path / "records.jsonl", made("erm", accuracy=0.5))
    page = write_page(tmp_path / "page.html", [tmp_path]).read_text(encoding="utf-8")
    assert "<h1>Records of PACS</h1>" in page
    assert 'id="streams"' not in page
    assert 'id="training"' in page


def test_a_training_has_no_streams(tmp_path: Path, made: Make, a_story: Callable[..., Story]) -> None:
    records.write_all(tmp_path / "records.jsonl", made("erm"))
    page = page_of(tmp_path, replace(a_story(), streams=()), replace(a_story(), title="another", streams=()))
    assert 'class="tiles"' not in page
    assert 'id="streams"' not in page
    assert page.count("itta adapt runs/pacs") == 2
    assert "<summary>another</summary>" in page


def test_training_curves_come_from_every_step(tmp_path: Path, made: Make) -> None:
    run = tmp_path / "runs" / "erm-0"
    run.mkdir(parents=True)
    found = [made("erm", step=s, accuracy=0.4 + s / 100, validation=0.6 + s / 100) for s in (10, 20, 30)]
    records.write_all(run / "records.jsonl", [r for (r,) in found])
    (run / "trial.json").write_text(json.dumps(found[0][0].trial.to_json()))
    records.append_lines(run / "steps.jsonl", [{"step": s, "loss": 3.0 / s, "step_time": 0.1} for s in range(1, 31)])
    training = numbers(write_page(tmp_path / "page.html", [tmp_path]).read_text(encoding="utf-8"))["training"]
    assert training.keys() == {"held-out sources, %", "sketch, %", "loss"}
    assert training["held-out sources, %"]["erm, seed 0"] == [[10, 20, 30], pytest.approx([70, 80, 90])]
    assert training["sketch, %"]["erm, seed 0"][1] == pytest.approx([50.2, 60.2, 70.2])  # the whole target
    assert training["loss"]["erm, seed 0"] == [list(range(1, 31)), [3.0 / s for s in range(1, 31)]]


def test_numbers_that_are_not_finite_are_left_out(tmp_path: Path, made: Make) -> None:
    found = [
        replace(r, logs={"loss": float("nan") if s == 20 else 1.0}) for s in (10, 20, 30) for r in made("erm", step=s)
    ]
    records.write_all(tmp_path / "records.jsonl", found)
    training = numbers(write_page(tmp_path / "page.html", [tmp_path]).read_text(encoding="utf-8"))["training"]
    assert training["loss"]["erm, seed 0"] == [[10, 30], [1, 1]]


def test_models_trained_for_tuning_have_no_place(tmp_path: Path, a_story: Callable[..., Story]) -> None:
    (tmp_path / "tune" / "run").mkdir(parents=True)
    write_story(tmp_path / "tune" / "run", a_story())
    write_story(tmp_path, a_story())
    assert [p for p, _ in read_inputs([tmp_path]).stories] == [tmp_path / "story.json"]


def test_more_streams_than_a_page_holds(
    tmp_path: Path, a_stream: Callable[..., Stream], a_story: Callable[..., Story]
) -> None:
    page = page_of(tmp_path, *(a_story(a_stream(f"stream {i}")) for i in range(14)))
    assert len(numbers(page)["streams"]) == 12
    assert "2 of 14 streams were left out" in page
    assert re.search(r"<code>itta report \S*story-\d+ --html page.html</code>", page)


def test_unlike_streams_have_no_mean(
    tmp_path: Path, a_stream: Callable[..., Stream], a_story: Callable[..., Story]
) -> None:
    page = page_of(tmp_path, a_story(a_stream(), a_stream(after=a_stream().before, adapter="t3a")))
    assert re.search(r"<th scope=.col.>adapter</th>", page)
    assert "The target is sketch. Changed" in page  # the same for all
    tiles = re.findall(r"<dt>([^<]*)</dt><dd>([^<]*)</dd>", page)[:4]
    assert tiles[1:3] == [("points of difference in the worst", "0.0"), ("points of difference in the best", "+12.5")]


def test_costs(tmp_path: Path, made: Make) -> None:
    found = made("erm", adapted={"t3a": 0.6})
    for r, seconds in zip(found, (0.01, 0.03)):
        records.append(tmp_path / "records.jsonl", replace(r, logs={"seconds_per_image": seconds, "step_time": 0.5}))
    page = write_page(tmp_path / "page.html", [tmp_path]).read_text(encoding="utf-8")
    assert re.search(
        r"<td>t3a</td>\s*<td class=\"n\">10.00</td>\s*<td class=\"n\">30.00</td>\s*<td class=\"n\">3.00<", page
    )
    assert re.search(r"<th scope=\"row\">erm</th>\s*<td class=\"n\">500.0</td>", page)


def test_a_large_run_stays_small_and_quick(
    tmp_path: Path, a_stream: Callable[..., Stream], a_story: Callable[..., Story], made: Make
) -> None:
    """Two streams of 10,000 images and 65 classes, 48 pictures of 4 kB each, and the records of a sweep."""
    rng = np.random.default_rng(0)
    data = "data:image/jpeg;base64," + "A" * 4096
    streams = []
    for seed in range(2):
        y, before, after = rng.integers(65, size=(3, 10_000)).tolist()
        pictures = tuple(Picture(f"{i}.jpg", data, "1", "2", "1") for i in range(48))
        classes = tuple(map(str, range(65)))
        streams.append(
            a_stream(f"seed {seed}", classes=classes, labels=y, before=before, after=after, pictures=pictures)
        )
    write_story(tmp_path, a_story(*streams))
    targets = ("art_painting", "cartoon", "photo", "sketch")
    sweep = [
        r
        for a in ("erm", "irm", "itta")
        for t in targets
        for s in range(3)
        for r in made(a, t, s, adapted={"t3a": 0.6})
    ]
    records.write_all(tmp_path / "records.jsonl", [replace(r, step=n) for r in sweep for n in range(10, 301, 10)])
    start = time.process_time()
    page = write_page(tmp_path / "page.html", [tmp_path])
    assert time.process_time() - start < 30
    assert page.stat().st_size < 8e6
