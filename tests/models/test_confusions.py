"""How a model answers held-out source images: collected when training ends, kept with it, not missed by others."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import itta
from itta.adapters.itta_plus import ITTAPlus
from itta.data import load_dataset
from itta.data.dataset import split
from itta.functional.augment import to_float
from itta.functional.priors import calibrated_temperature, mean_answers
from itta.trial import Trial

SIZE = 16


@pytest.fixture(scope="module")
def folder(train: Callable[..., int], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("confusions") / "model"
    assert train(out, "--algorithm", "erm", "--backbone", "small_cnn", "--image-size", str(SIZE)) == 0
    return out


def test_they_come_from_held_out_images_of_the_sources(folder: Path, photos: Path) -> None:
    model, trial = itta.load(folder), Trial.from_json(json.loads((folder / "trial.json").read_text()))
    dataset = load_dataset(str(photos), image_size=SIZE)
    splits = split(dataset, trial.trial_seed)
    held_out = {d: splits[d].held_out for d in trial.train_domains}
    x = torch.cat([to_float(dataset.domain(d).read(rows)) for d, rows in held_out.items()])
    y = torch.cat([torch.from_numpy(dataset.domain(d).labels[rows]) for d, rows in held_out.items()])
    with torch.no_grad():
        logits = model.predict(x)
    assert model.confusions is not None
    temperature = calibrated_temperature(logits, y)
    torch.testing.assert_close(float(model.confusions["temperature"]), temperature, rtol=1e-3, atol=0)
    expected = mean_answers(logits / temperature, y)
    torch.testing.assert_close(model.confusions["mean"], expected, rtol=0, atol=1e-3)
    assert float(model.confusions["prior"].sum()) == pytest.approx(1)


def test_a_model_without_them_still_loads_and_says_so(folder: Path, tmp_path: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    older = {name: t for name, t in tensors.items() if not name.startswith("confusions.")}
    assert len(older) == len(tensors) - 3
    save_file(older, tmp_path / "model.safetensors")
    about = json.loads((folder / "model.json").read_text())
    del about["weights_sha256"]  # which came later still
    (tmp_path / "model.json").write_text(json.dumps(about))
    model = itta.load(tmp_path)
    assert model.confusions is None
    adapter = itta.adapt(model, "itta+", guard=False)
    assert isinstance(adapter, ITTAPlus)
    assert torch.isfinite(adapter(torch.rand(4, 3, SIZE, SIZE))).all()
    assert "does not carry them" in adapter.diagnosis()["left out"]["confusions"]
