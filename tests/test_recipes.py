"""A recipe sets what the user does not; on the command line, in a sweep and in Python."""

import json

import pytest

from itta.cli import main
from itta.cli.screen import typed, typed_settings
from itta.errors import InputError
from itta.recipes import QUICK, RECIPES, find_recipe, follow
from itta.settings import TrainSettings
from itta.sweep.plan import Sweep
from itta.trial import Trial


def test_auto_is_quick_on_a_cpu_and_full_on_a_gpu():
    assert find_recipe("auto", "cpu") is RECIPES["quick"]
    assert find_recipe("auto", "cuda") is RECIPES["full"]
    with pytest.raises(InputError, match="auto, quick, full, none"):
        find_recipe("slow")


def test_full_is_the_protocol_of_domainbed():
    full = RECIPES["full"]
    assert (full.training.image_size, full.training.steps, full.lr, full.batch_size) == (224, 5000, 5e-5, 32)
    assert (full.training.schedule, full.training.average, full.training.head_start) == ("constant", 0.0, False)


def test_own_settings_go_before_the_recipe_even_if_they_equal_a_default():
    token = typed.set(("train", "photos", "--steps", str(QUICK.steps), "--no-head-start"))
    try:
        given = typed_settings(TrainSettings(steps=QUICK.steps, head_start=False))
    finally:
        typed.reset(token)
    assert given == {"steps": QUICK.steps, "head_start": False}
    assert follow(RECIPES["full"], given) == TrainSettings(backbone="resnet18", steps=QUICK.steps, image_size=224)


def test_methods_with_other_learning_rates_get_the_rate_of_the_recipe():
    assert RECIPES["quick"].hparams("dann")["lr_g"] == RECIPES["quick"].lr
    assert set(RECIPES["quick"].hparams("erm")) == {"lr", "batch_size"}
    assert RECIPES["quick"].hparams("itta")["align_every"] == 5  # f_w learns in every fifth step
    assert RECIPES["none"].hparams("dann") == {}


@pytest.mark.parametrize("small", [{"image_size": 28}, {"regime": "small"}])
def test_small_images_keep_domainbeds_hyper_parameters(small):
    assert RECIPES["quick"].hparams("erm", TrainSettings(**small)) == {}
    assert RECIPES["quick"].hparams("erm", TrainSettings(image_size=28, regime="large"))["lr"] == RECIPES["quick"].lr


def test_a_sweep_gives_each_method_its_own_values():
    sweep = Sweep({"emoji": ("a", "b")}, ("erm", "irm"), trial_seeds=1, by_method={"erm": {"lr": 0.5}})
    assert {t.algorithm: t.overrides for t in sweep.trials()} == {"erm": {"lr": 0.5}, "irm": {}}


def test_the_command_line_trains_by_the_quick_recipe(photos, tmp_path, capsys):
    words = ["train", str(photos), "--out", str(tmp_path / "run"), "--algorithm", "erm", "--steps", "1", "--no-page"]
    small = ("--backbone", "small_cnn", "--weights", "none", "--image-size", "16", "--regime", "large")
    assert main([*words, *small, "--no-stand-ins"]) == 0
    trial = Trial.from_json(json.loads((tmp_path / "run" / "trial.json").read_text()))
    assert trial.overrides == {"lr": RECIPES["quick"].lr, "batch_size": RECIPES["quick"].batch_size}
    typed_here = {"backbone": "small_cnn", "weights": "none", "image_size": 16, "regime": "large", "steps": 1}
    assert trial.shared() == QUICK.shared() | typed_here
