"""Settings of every training: averaged weights, a falling learning rate, live batch normalisation, a head start."""

from dataclasses import replace

import pytest
import torch

from itta.data import load_dataset
from itta.data.dataset import split
from itta.errors import InputError
from itta.nn.batch_norm import batch_norms
from itta.run.preparation import build, fit_head, training_features
from itta.run.train import train
from itta.trial import Trial

PLAIN = Trial(
    "emoji", "erm", ("twemoji", "noto-mono"), steps=3, backbone="small_cnn", weights="none", image_size=16,
    augment=False, overrides={"batch_size": 2, "lr": 0.01},
)  # fmt: skip


@pytest.fixture(scope="module")
def emoji():
    return load_dataset("emoji", image_size=16)


@pytest.mark.slow
def test_averaged_weights_are_saved_and_differ_from_the_last_ones(emoji, tmp_path):
    last = train(PLAIN, tmp_path / "last", emoji).model
    mean = train(replace(PLAIN, average=0.9), tmp_path / "mean", emoji).model
    start = build(PLAIN, emoji)
    for a, b, c in zip(start.parameters(), mean.parameters(), last.parameters()):
        assert not torch.equal(b, c)
        assert (b - a).norm() < (c - a).norm()  # the average lags behind


@pytest.mark.slow
def test_a_falling_learning_rate_trains_otherwise(emoji, tmp_path):
    constant, cosine = (train(replace(PLAIN, schedule=s), tmp_path / s, emoji).model for s in ("constant", "cosine"))
    assert not torch.equal(constant.head.weight, cosine.head.weight)


@pytest.mark.parametrize(("bn", "moves"), [("live", True), ("frozen", False)])
def test_live_normalisation_learns_statistics_and_frozen_does_not(bn, moves, emoji):
    algorithm = build(replace(PLAIN, backbone="resnet18", image_size=32, bn=bn), emoji)
    first = next(iter(batch_norms(algorithm.backbone).values()))
    before = first.running_mean.clone()
    algorithm.update([(torch.rand(2, 3, 32, 32), torch.tensor([0, 1])) for _ in range(2)])
    assert moves == (not torch.equal(first.running_mean, before))


def test_a_head_start_fits_the_head_and_leaves_the_features(emoji):
    plain, fitted = build(PLAIN, emoji), build(PLAIN, emoji)
    splits = split(emoji, 0)
    fit_head(fitted, emoji, splits, PLAIN)
    assert fitted.training
    for a, b in zip(plain.backbone.parameters(), fitted.backbone.parameters()):
        assert torch.equal(a, b)
    z, y = training_features(fitted.eval(), emoji, splits, PLAIN)
    right = [float((m.head(z.float()).argmax(1) == y).float().mean()) for m in (plain, fitted)]
    assert right[1] > right[0] + 0.2


def test_a_head_start_does_not_depend_on_earlier_random_numbers(emoji):
    weights = []
    for _ in range(2):
        model = build(PLAIN, emoji)
        torch.rand(len(weights) + 1)
        fit_head(model, emoji, split(emoji, 0), PLAIN)
        weights.append(model.head.weight)
    assert torch.equal(*weights)


def test_plain_settings_leave_the_name_of_a_trial_as_it_was():
    assert PLAIN.key == replace(PLAIN, schedule="constant", average=0.0, bn="auto").key
    others = {"schedule": "cosine"}, {"average": 0.9}, {"bn": "live"}, {"head_start": True}, {"warmup": 2}
    keys = {replace(PLAIN, **other).key for other in others}
    assert len(keys | {PLAIN.key}) == 6
    assert "average" not in PLAIN.to_json()


def test_a_decay_of_one_is_refused():
    with pytest.raises(InputError, match="--average must be at least 0 and below 1, got 1"):
        replace(PLAIN, average=1.0)
