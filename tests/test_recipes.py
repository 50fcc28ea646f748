"""A recipe sets what the user does not; on the command line, in a sweep and in Python."""

import json

import pytest

from itta.cli import main
from itta.cli.screen import typed, typed_settings
from itta.errors import InputError
from itta.recipes import QUICK, RECIPES, find_recipe, follow
from itta.settings import TrainSettings
from itta.sweep.plan import Sweep


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
    assert RECIPES["none"].hparams("dann") == {}


def test_a_sweep_gives_the_first_draw_to_the_recipe_and_the_others_to_the_search():
    sweep = Sweep({"emoji": ("a", "b")}, ("erm",), hparams_seeds=2, trial_seeds=1, first={"erm": {"lr": 0.5}})
    drawn = {t.hparams_seed: t.overrides for t in sweep.trials()}
    assert drawn == {0: {"lr": 0.5}, 1: {}}


def test_the_command_line_trains_by_the_quick_recipe(photos, tmp_path, capsys):
    words = ["train", str(photos), "--out", str(tmp_path / "run"), "--algorithm", "erm", "--steps", "1", "--no-page"]
    assert main([*words, "--backbone", "small_cnn", "--weights", "none", "--image-size", "16", "--no-stand-ins"]) == 0
    trial = json.loads((tmp_path / "run" / "trial.json").read_text())
    assert trial["overrides"] == {"lr": RECIPES["quick"].lr, "batch_size": RECIPES["quick"].batch_size}
    assert {name: trial.get(name) for name in ("schedule", "average", "head_start", "steps")} == {
        "schedule": QUICK.schedule, "average": QUICK.average, "head_start": QUICK.head_start, "steps": 1,
    }  # fmt: skip
