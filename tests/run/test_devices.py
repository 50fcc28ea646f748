"""A training on another device, from the first step to the saved model, and what records say of it."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import itta
from itta import records
from itta.adapters import adapt
from itta.data import load_dataset
from itta.errors import InputError
from itta.run import train as module
from itta.run.evaluate import evaluate
from itta.run.job import Job
from itta.run.train import RECORDS, learn, prepare, save_with_statistics
from itta.settings import RunSettings
from itta.store.model import load
from itta.trial import Trial
from tests.fixtures.device_walk import PRETENDED, pretended_device

pytestmark = pytest.mark.slow

STEPS = 3


@pytest.fixture
def trial(make_job: Callable[..., Job], tmp_path: Path) -> Trial:
    return replace(make_job(tmp_path).trial, algorithm="itta", steps=STEPS)


def test_a_whole_training_runs_on_the_device(trial: Trial, photos: Path, tmp_path: Path) -> None:
    """Steps wait once each; the model is saved, and answers on the host as it did on the device."""
    waits = []
    dataset = load_dataset(photos, image_size=16)
    with pretended_device() as watch:
        training = prepare(trial, tmp_path, dataset, STEPS, PRETENDED)
        update = training.algorithm.update

        def counted(batches):
            watch.forget()
            logs = update(batches)
            waits.append(watch.waits.total())
            assert all(x.device == y.device == PRETENDED for x, y in batches)
            return logs

        training.algorithm.update = counted  # type: ignore[method-assign]
        learn(training, lambda *progress: None, lambda: False)
        save_with_statistics(tmp_path, training, STEPS)
        night = dataset.domain("night")
        there = evaluate(adapt(training.algorithm, "itta+"), night, range(8), 4)
    assert waits == [1] * STEPS
    (record,) = records.read(tmp_path / RECORDS)
    assert (record.device, record.precision) == ("meta", "float32")
    model = load(tmp_path)
    assert model.style_bank is not None
    assert model.confusions is not None
    here = evaluate(adapt(model, "itta+"), night, range(8), 4)
    assert (here.predictions == there.predictions).all()
    assert here.confidence == pytest.approx(there.confidence, abs=1e-4)


def test_records_say_the_precision_and_the_trial_has_another_key(trial: Trial, photos: Path, tmp_path: Path) -> None:
    rounded = replace(trial, algorithm="erm", precision="bf16")
    result = module.train(rounded, tmp_path / "bf16", settings=RunSettings(device="cpu"))
    assert result.model.backbone.precision == "bf16"
    assert (result.last.device, result.last.precision) == ("cpu", "bf16")
    assert json.loads((tmp_path / "bf16" / "trial.json").read_text())["precision"] == "bf16"
    again = module.train(rounded, tmp_path / "bf16", settings=RunSettings(device="cpu"))  # finished: it is loaded
    assert again.model.backbone.precision == "bf16"
    assert torch.equal(again.model.head.weight, result.model.head.weight)


def test_the_library_trains_on_a_device_in_a_precision(photos: Path) -> None:
    settings = {"steps": 2, "image_size": 16, "backbone": "small_cnn", "weights": "none", "batch_size": 4}
    result = itta.train(photos, "erm", "night", device="cpu", precision="bf16", **settings)
    assert result.model.backbone.precision == "bf16"
    assert {(r.device, r.precision, r.trial.precision) for r in result.records} == {("cpu", "bf16", "bf16")}
    with pytest.raises(InputError, match="unknown device 'gpu'"):
        itta.train(photos, "erm", "night", device="gpu", **settings)


def test_the_key_of_a_float32_trial_is_that_of_earlier_versions(trial: Trial) -> None:
    assert "precision" not in trial.to_json()
    assert replace(trial, precision="bf16").key != trial.key
    plain = Trial("emoji", "erm", ("a", "b"), ("c",))
    assert plain.key == "f24863f5e6d3da33af042dd17ea2f12a"


def test_records_of_earlier_versions_are_from_a_cpu(model: Path, tmp_path: Path) -> None:
    (line,) = (model / RECORDS).read_text().splitlines()
    values = json.loads(line)
    assert (values.pop("device"), values.pop("precision")) == ("cpu", "float32")
    path = tmp_path / RECORDS
    path.write_text(json.dumps(values | {"schema": 2}) + "\n")
    (record,) = records.read(path)
    assert (record.device, record.precision) == ("cpu", "float32")
