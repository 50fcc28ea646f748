import csv
import io
import json
import os
import tracemalloc
from dataclasses import fields
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import itta.run.predict
import itta.run.unfinished_rows
from itta.cli import main
from itta.data.folder import find_images
from itta.data.loaders import batched, use_workers
from itta.run.predict import Prediction

COLUMNS = [f.name for f in fields(Prediction)]


def rows_of(text: str, format: str) -> list[dict[str, str]]:
    if format == "csv":
        return list(csv.DictReader(io.StringIO(text)))
    return [{k: "" if v is None else str(v) for k, v in json.loads(line).items()} for line in text.splitlines()]


@pytest.fixture
def strange(tmp_path) -> Path:
    """A folder of every kind of image that people have."""
    folder = tmp_path / "strange"
    folder.mkdir()
    rng = np.random.default_rng(0)
    colour = Image.fromarray(rng.integers(0, 256, (20, 30, 3), dtype=np.uint8))
    colour.convert("CMYK").save(folder / "cmyk.jpg")
    colour.convert("L").save(folder / "grey.png")
    colour.convert("RGBA").save(folder / "alpha.png")
    colour.convert("P").save(folder / "palette.gif")
    Image.fromarray(rng.integers(0, 65536, (20, 30)).astype(np.uint16)).save(folder / "deep.png")
    return folder


@pytest.mark.parametrize("format", ["csv", "jsonl"])
@pytest.mark.parametrize("to_file", [True, False])
def test_a_row_for_each_image(format, to_file, model, photos, tmp_path, capsys):
    where = ["--out", str(tmp_path / "p")] if to_file else []
    first = str(photos / "dawn" / "down" / "3.png")
    capsys.readouterr()
    assert main(["predict", str(model), first, str(photos / "night"), "--format", format, *where]) == 0
    printed = capsys.readouterr()
    rows = rows_of((tmp_path / "p").read_text() if to_file else printed.out, format)
    assert printed.err == ""
    assert [row["file"] for row in rows][:2] == [first, str(photos / "night" / "across" / "0.png")]
    assert len(rows) == 13
    for row in rows:
        assert list(row) == COLUMNS
        assert row["label"] in ("across", "down")
        assert 0.5 <= float(row["probability"]) <= 1
        assert row["changed"] == str(row["label"] != row["label_before"])
        assert row["error"] == ""


def test_every_kind_of_image_in_batches_of_one(model, strange, capsys):
    assert main(["predict", str(model), str(strange), "--batch-size", "1"]) == 0
    rows = rows_of(capsys.readouterr().out, "csv")
    assert len(rows) == 5
    assert all(row["label"] and not row["error"] for row in rows)


@pytest.mark.slow
def test_an_unreadable_image_costs_its_own_row_only(model, strange, capsys):
    whole = (strange / "grey.png").read_bytes()
    (strange / "torn.png").write_bytes(whole[: len(whole) // 2])
    (strange / "text.jpg").write_text("not a picture")
    (strange / "empty.png").touch()
    Image.new("1", (20_000, 20_000)).save(strange / "vast.png")
    capsys.readouterr()
    assert main(["predict", str(model), str(strange), "--batch-size", "2"]) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("itta: error: 4 of 9 images")
    assert printed.err.count("\n") == 1
    rows = {Path(row["file"]).stem: row for row in rows_of(printed.out, "csv")}
    assert {name for name, row in rows.items() if row["error"]} == {"torn", "text", "empty", "vast"}
    assert "20000 x 20000" in rows["vast"]["error"]
    for name, row in rows.items():
        assert bool(row["label"]) != bool(row["error"]), name


def test_without_adaptation_nothing_changes(model, photos, capsys):
    assert main(["predict", str(model), str(photos / "night"), "--adapter", "source", "--format", "jsonl"]) == 0
    for line in capsys.readouterr().out.splitlines():
        row = json.loads(line)
        assert row["changed"] is False
        assert (row["label"], row["probability"]) == (row["label_before"], row["probability_before"])


def test_finished_batches_are_on_disk_when_a_later_one_fails(model, photos, tmp_path, monkeypatch):
    out, real, calls = tmp_path / "p.csv", itta.run.predict.predict_images, []

    def fail_third(*args):
        calls.append(len(rows_of(out.read_text(), "csv")))
        if len(calls) == 3:
            raise MemoryError
        return real(*args)

    monkeypatch.setattr(itta.run.predict, "predict_images", fail_third)
    assert main(["predict", str(model), str(photos / "night"), "--batch-size", "4", "--out", str(out)]) == 2
    assert calls == [0, 4, 8]
    assert len(rows_of(out.read_text(), "csv")) == 8


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (["--batch-size", "0"], "batch-size"),
        (["--set", "steps=0"], "steps"),
        (["--adapter", "magic"], "source, tent"),
        (["--adapter", "tent"], "adapts batch normalisation"),
        (["nowhere"], "nowhere"),
    ],
)
def test_a_mistake_leaves_earlier_predictions_alone(wrong, told, model, photos, tmp_path, capsys):
    out = tmp_path / "p.csv"
    out.write_text("earlier")
    images = [wrong.pop()] if len(wrong) == 1 else [str(photos / "night")]
    capsys.readouterr()
    assert main(["predict", str(model), *images, *wrong, "--out", str(out)]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("itta: error:")
    assert printed.count("\n") == 1
    assert told in printed
    assert out.read_text() == "earlier"


def test_no_images_is_a_mistake(model, capsys):
    assert main(["predict", str(model)]) == 2
    assert capsys.readouterr().err.startswith("itta: error: no images")


def test_an_interrupted_command_goes_on_and_ends_as_if_it_had_not_stopped(
    model, photos, tmp_path, capsys, monkeypatch
) -> None:
    """With an adapter that learns: its state goes on too. The rows after the last state are predicted again."""
    monkeypatch.setattr(itta.run.unfinished_rows, "EVERY", 0.0)
    whole, parts, images = tmp_path / "whole.csv", tmp_path / "parts.csv", str(photos / "night")
    flags = ["--adapter", "itta+", "--batch-size", "2"]
    assert main(["predict", str(model), images, "--out", str(whole), *flags]) == 0
    predict_images, calls = itta.run.predict.predict_images, []

    def stops(*args):
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return predict_images(*args)

    with monkeypatch.context() as patch:
        patch.setattr(itta.run.predict, "predict_images", stops)
        assert main(["predict", str(model), images, "--out", str(parts), *flags]) != 0
    assert len(parts.read_text().splitlines()) == 1 + 3 * 2
    with parts.open("a") as file:
        file.write("a row that was being written when the power went")
    state = tmp_path / "parts.csv.unfinished"
    assert state.is_file()
    capsys.readouterr()
    assert main(["predict", str(model), images, "--out", str(parts), *flags]) == 0
    assert "has 6 of 12 images" in capsys.readouterr().err
    assert parts.read_text() == whole.read_text()
    assert not state.exists()


def test_another_command_begins_anew(model, photos, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(itta.run.unfinished_rows, "EVERY", 0.0)
    monkeypatch.setattr(itta.run.unfinished_rows.UnfinishedRows, "finish", lambda self: None)
    out = tmp_path / "p.csv"
    command = ["predict", str(model), str(photos / "night"), "--out", str(out)]
    for size in "45":
        assert main([*command, "--batch-size", size]) == 0
        assert len(rows_of(out.read_text(), "csv")) == 12
    before = out.read_text()
    (tmp_path / "p.csv.unfinished").write_bytes(b"broken")
    capsys.readouterr()
    assert main([*command, "--batch-size", "5"]) == 2
    assert f"Delete {out}.unfinished" in capsys.readouterr().err
    assert out.read_text() == before


@pytest.mark.parametrize("workers", ["0", "2"])
def test_rows_do_not_depend_on_the_workers(workers, model, photos, tmp_path) -> None:
    outs = [tmp_path / "one.csv", tmp_path / "other.csv"]
    for out, n in zip(outs, ("1", workers), strict=True):
        command = ["predict", str(model), str(photos / "night"), "--out", str(out), "--workers", n, "--batch-size", "3"]
        assert main(command) == 0
    use_workers(1)
    assert outs[0].read_text() == outs[1].read_text()


@pytest.mark.slow
def test_many_files_are_listed_without_being_kept(tmp_path) -> None:
    """Twenty thousand names in forty folders, in the order of people's numbers, in memory that does not grow."""
    for i in range(40):
        (tmp_path / f"{i}").mkdir()
        for j in range(500):
            (tmp_path / f"{i}" / f"{j}.png").touch()
    tracemalloc.start()
    try:
        n = sum(1 for _ in batched(find_images([tmp_path]), 32))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert n == 20_000 / 32
    assert peak < 1_000_000
    first = [os.path.relpath(path, tmp_path) for path in islice(find_images([tmp_path]), 501)]
    assert first[:11] == [f"0/{j}.png" for j in range(11)]
    assert first[500] == "1/0.png"
