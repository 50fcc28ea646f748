"""A run keeps the model of its best step, by source validation, beside the last one."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from itta import records
from itta.metrics.selection import training_domain
from itta.run import train as module
from itta.run.train import selected_model, train
from itta.settings import RunSettings
from itta.store.model import load, read_description
from itta.trial import Trial

REAL = module.record_of


@pytest.fixture
def trial(photos: Path) -> Trial:
    return Trial(
        str(photos), "itta", ("dawn", "noon"), ("night",), steps=6, backbone="small_cnn", weights="none", image_size=16,
        overrides={"batch_size": 4},
    )  # fmt: skip


@pytest.fixture
def validate(monkeypatch):
    """(step -> accuracy) -> what the held-out images of the sources will seem to say, in evaluations of two steps."""

    def pretend(by_step: dict[int, float]) -> None:
        values = iter(by_step.values())

        def record_of(training, *about):
            record, value = REAL(training, *about), next(values)
            domains = training.trial.train_domains
            return replace(record, accuracy=record.accuracy | {d: {"out": value} for d in domains})

        monkeypatch.setattr(module, "record_of", record_of)

    return pretend


def same(a: Path, b: Path) -> bool:
    """Whether two models are equal, and what they take along from the sources."""
    one, two = load(a), load(b)
    banks = [m.style_bank.tensors() for m in (one, two) if m.style_bank]
    pairs = [(one.state_dict(), two.state_dict()), (banks[0], banks[1])]
    return all(torch.equal(x[k], y[k]) for x, y in pairs for k in x)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("by_step", "best"), [({2: 0.5, 4: 0.9, 6: 0.7}, 4), ({2: 0.9, 4: 0.9, 6: 0.9}, 2), ({2: 0.5, 4: 0.7, 6: 0.9}, 6)]
)
def test_the_best_step_is_kept_as_tables_select_it(by_step, best, trial, validate, tmp_path):
    validate(by_step)
    train(trial, tmp_path / "run", settings=RunSettings(eval_every=2))
    found = selected_model(tmp_path / "run")
    assert found == tmp_path / "run" / ("best" if best < 6 else "")
    choice = training_domain(list(records.read(tmp_path / "run" / "records.jsonl")), [], "night")
    assert choice
    assert choice.record.step == best
    assert read_description(found).trial == trial
    validate({best: 0.5})
    train(replace(trial, steps=best), tmp_path / "short", settings=RunSettings(eval_every=best))
    assert same(found, tmp_path / "short")
    if best < 6:
        assert not same(found, tmp_path / "run")
    assert not (tmp_path / "run" / "best.safetensors").exists()


@pytest.mark.slow
def test_resumed_after_the_best_step_it_is_still_kept(trial, validate, tmp_path):
    values = {2: 0.5, 4: 0.9, 6: 0.7}
    validate(values)
    train(trial, tmp_path / "whole", settings=RunSettings(eval_every=2))
    validate(values)

    def stop(name: str, step: int, steps: int) -> None:
        if step == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(trial, tmp_path / "run", settings=RunSettings(eval_every=2), report=stop)
    assert not (tmp_path / "run" / "model.json").exists()
    validate({6: 0.7})
    train(trial, tmp_path / "run", settings=RunSettings(eval_every=2))
    for name in ("records.jsonl", "model.safetensors", "model.json", "best/model.safetensors", "best/model.json"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
