"""What a training records of the model as it is."""

import numpy as np
import pytest

from itta import records
from itta.adapters import adapt
from itta.data import load_dataset
from itta.data.dataset import split
from itta.data.target import open_target
from itta.run.directory import claim
from itta.run.evaluate import evaluate
from itta.store.model import load, read_description
from itta.trial import Trial


def test_records_tell_accuracy_and_calibration_of_the_same_images(model, photos):
    (record,) = records.read(model / "records.jsonl")
    splits = split(load_dataset(str(photos), image_size=16), read_description(model).trial.trial_seed)
    expected = {"dawn": {"out"}, "noon": {"out"}, "night": {"in", "out", "all"}}
    assert {d: set(of) for d, of in record.accuracy.items()} == expected
    assert {d: set(of) for d, of in record.calibration.items()} == expected
    source = adapt(load(model), "source")
    for domain, of in expected.items():
        images = open_target(str(photos), read_description(model).expected, domain).images
        cut = {"in": splits[domain].train, "out": splits[domain].held_out, "all": np.arange(len(images))}
        for name in of:
            alone = evaluate(source, images, cut[name], batch_size=3)
            assert record.accuracy[domain][name] == pytest.approx(alone.accuracy)
            assert record.calibration[domain][name] == pytest.approx(alone.calibration_error, abs=1e-5)


def test_files_that_a_killed_run_left_half_written_go(tmp_path):
    for name in ("story.json", "page.html", "records.jsonl", "model.safetensors"):
        (tmp_path / f"{name}.123.tmp").write_text("half")
    claim(tmp_path, Trial("emoji", "erm", ("twemoji",)))
    assert [p.name for p in tmp_path.iterdir()] == ["trial.json"]
