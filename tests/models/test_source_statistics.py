"""The Fisher information that EATA needs: made when training ends, kept with the model, and not missed by others."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import itta
from itta.adapters.scopes import norm_affine
from itta.algorithms import Algorithm
from itta.data import load_dataset
from itta.data.dataset import Split, split
from itta.errors import InputError
from itta.functional.augment import to_float
from itta.models.source_statistics import fisher_information, fisher_of_norms
from itta.models.trained import frozen_copy
from itta.run.source_data import source_images
from itta.store.model import read_description, save_model
from itta.trial import Trial

SIZE = 32


@pytest.fixture(scope="module")
def resnet(train: Callable[..., int], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with batch normalisation, trained for two steps."""
    out = tmp_path_factory.mktemp("fisher") / "resnet"
    assert train(out, "--algorithm", "erm", "--backbone", "resnet18", "--image-size", str(SIZE)) == 0
    return out


def trial_of(model: Path) -> Trial:
    return Trial.from_json(json.loads((model / "trial.json").read_text()))


@pytest.mark.slow
def test_training_leaves_it_with_the_model(resnet: Path) -> None:
    model = itta.load(resnet)
    assert model.fisher is not None
    shapes = {name: p.shape for name, p in norm_affine(model).items()}
    assert {name: f.shape for name, f in model.fisher.items()} == shapes
    assert all((f >= 0).all() and torch.isfinite(f).all() for f in model.fisher.values())
    assert all(f.max() > 0 for f in model.fisher.values())
    assert frozen_copy(model).fisher.keys() == model.fisher.keys()
    adapter = itta.adapt(model, "eata")
    assert torch.isfinite(adapter(torch.rand(4, 3, SIZE, SIZE))).all()
    assert all(torch.equal(adapter.fisher[name], f) for name, f in model.fisher.items())


def test_it_comes_from_the_training_images_of_the_sources(resnet: Path, photos: Path) -> None:
    """Here all of them: a batch of 32 would hold more than a domain has."""
    model, trial = itta.load(resnet), read_description(resnet).trial
    dataset = load_dataset(str(photos), image_size=SIZE)
    splits = split(dataset, trial.trial_seed)
    found = {domain: to_float(dataset.domain(domain).read(splits[domain].train)) for domain in ("dawn", "noon")}
    assert {len(x) for x in found.values()} == {10}
    # Squared gradients of a deep random network feel the order of the images; other images are much further away
    assert distance(model, found.values()) < 0.02
    others = [dataset.domain(domain).read(splits[domain].held_out).float() / 255 for domain in ("dawn", "noon")]
    assert distance(model, [x.flip(-1) for x in found.values()]) > 0.2
    assert distance(model, others) > 0.2


def distance(model: Algorithm, batches: Iterable[Tensor]) -> float:
    """How far the stored information is from that of some images, relative to its size."""
    expected = fisher_information(model, batches)
    stored = torch.cat([model.fisher[name].flatten() for name in expected])
    own = torch.cat([f.flatten() for f in expected.values()])
    return float((stored - own).norm() / own.norm())


def test_it_comes_back_as_it_was(resnet: Path, tmp_path: Path) -> None:
    about = json.loads((resnet / "model.json").read_text())["about"]
    save_model(tmp_path, itta.load(resnet), "resnet18", about)
    for name in ("model.json", "model.safetensors"):
        assert (tmp_path / name).read_bytes() == (resnet / name).read_bytes()
    saved = load_file(resnet / "model.safetensors")
    fisher = itta.load(resnet).fisher
    assert {name for name in saved if name.startswith("fisher.")} == {f"fisher.{name}" for name in fisher}
    assert all(torch.equal(saved[f"fisher.{name}"], f) for name, f in fisher.items())


def test_a_model_from_before_still_loads(resnet: Path, tmp_path: Path) -> None:
    tensors = load_file(resnet / "model.safetensors")
    older = {name: v for name, v in tensors.items() if not name.startswith("fisher.")}
    assert len(older) < len(tensors)
    save_file(older, tmp_path / "model.safetensors")
    about = json.loads((resnet / "model.json").read_text())
    del about["weights_sha256"]  # models of version 0.1 have no checksum
    (tmp_path / "model.json").write_text(json.dumps(about))
    model, x = itta.load(tmp_path), torch.rand(4, 3, SIZE, SIZE)
    assert model.fisher is None
    assert torch.equal(model.predict(x), itta.load(resnet).predict(x))
    with pytest.raises(InputError, match=r"train it again.*fisher=0"):
        itta.adapt(model, "eata")
    itta.adapt(model, "eata", fisher=0)(x)


def test_without_batch_normalisation_there_is_none(model: Path) -> None:
    assert itta.load(model).fisher is None
    assert not any(name.startswith("fisher.") for name in load_file(model / "model.safetensors"))


def test_a_lone_image_has_no_statistics(resnet: Path, photos: Path) -> None:
    model, trial = itta.load(resnet), read_description(resnet).trial
    dataset = load_dataset(str(photos), image_size=SIZE)
    lone = {domain: Split(s.train[:1], s.held_out) for domain, s in split(dataset, trial.trial_seed).items()}
    assert fisher_of_norms(model, source_images(dataset, lone, trial)) is None
    some = lone | {"dawn": Split(np.arange(5), np.arange(5, 12))}
    fisher = fisher_of_norms(model, source_images(dataset, some, trial))
    assert fisher is not None
    assert all(torch.isfinite(f).all() for f in fisher.values())
