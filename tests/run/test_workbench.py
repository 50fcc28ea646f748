"""itta.train, itta.evaluate and itta.predict, with data and networks of a user's own."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import itta
from itta.algorithms import Algorithm, base
from itta.algorithms.base import Batch, Logs
from itta.data import load_dataset
from itta.errors import InputError
from itta.hparams import hp
from itta.nn import BACKBONES
from itta.nn.small_cnn import SmallCNN
from tests.data.test_torch_datasets import Files
from tests.fixtures.networks import sequential_cnn
from tests.fixtures.toy import TinyBN

TINY: dict[str, Any] = {"image_size": 16, "steps": 2, "batch_size": 4}


def datasets(photos: Path) -> dict[str, Files]:
    return {name: Files(photos / name) for name in ("night", "noon", "dawn")}


def same(a: torch.nn.Module, b: torch.nn.Module) -> bool:
    first, second = a.state_dict(), b.state_dict()
    return first.keys() == second.keys() and all(torch.equal(v, second[k]) for k, v in first.items())


@pytest.mark.parametrize("algorithm", ["erm", "itta"])
def test_torch_datasets_train_to_the_weights_of_their_folder(algorithm: str, photos: Path) -> None:
    settings = {"algorithm": algorithm, "target": "night", "backbone": lambda: SmallCNN(8), **TINY}
    from_folder = itta.train(photos, **settings)
    from_dict = itta.train(datasets(photos), **settings)
    from_dataset = itta.train(load_dataset(photos, image_size=16), **settings)
    assert same(from_folder.model, from_dict.model)
    assert same(from_folder.model, from_dataset.model)
    assert from_folder.accuracy == from_dict.accuracy
    bank, other = from_folder.model.style_bank, from_dict.model.style_bank
    assert bank is not None
    assert other is not None
    assert torch.equal(bank.mean["block1"], other.mean["block1"])
    another = itta.train(photos, **settings, seed=1)
    assert not same(from_folder.model, another.model)


def test_a_backbone_object_is_not_changed_and_is_loaded_again(photos: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    mine = TinyBN()
    before = {k: v.clone() for k, v in mine.state_dict().items()}
    names = list(BACKBONES)
    result = itta.train(photos, "erm", "night", tmp_path / "run", mine, **TINY)
    assert list(BACKBONES) == names
    assert all(torch.equal(v, before[k]) for k, v in mine.state_dict().items())
    assert result.folder == tmp_path / "run"
    loaded = itta.load(tmp_path / "run", backbone=mine)
    assert same(loaded, result.model)
    again = itta.train(photos, "erm", "night", tmp_path / "run", mine, **TINY)  # finished: not trained again
    assert same(again.model, result.model)
    itta.save(result.model, tmp_path / "copy")
    assert same(itta.load(tmp_path / "copy", backbone=TinyBN), result.model)


@dataclass(frozen=True)
class Hparams(base.Hparams):
    smoothing: float = hp(0.1, "share of the label that is spread over all classes")


class OwnMethod(Algorithm):
    """Label smoothing."""

    name, paper, Hparams = "own_method", "none: an example", Hparams

    def objective(self, batches: Sequence[Batch]) -> tuple[Tensor, Logs]:
        x, y = self.gather(batches)
        loss = F.cross_entropy(self.predict(x), y, label_smoothing=self.hp.smoothing)
        return loss, {"loss": loss.item()}


def test_a_method_of_ones_own_evaluated_and_predicted(photos: Path) -> None:
    result = itta.train(photos, OwnMethod, "night", backbone=lambda: SmallCNN(8), smoothing=0.2, **TINY)
    assert result.model.hp.smoothing == 0.2
    model = result.model
    found = itta.evaluate(itta.adapt(model, "t3a"), photos, "night", against=model)
    assert list(found.outcomes) == ["night"]
    assert found.before["night"].accuracy == result.accuracy["night"]["all"]
    assert found.to_dict()["images"] == {"night": 12}
    everywhere = itta.evaluate(model, datasets(photos))
    assert set(everywhere.to_dict()["domains"]) == {"dawn", "night", "noon"}
    assert everywhere.outcomes["night"].accuracy == found.before["night"].accuracy
    assert everywhere.before == {}


def test_predictions_of_files_tensors_and_datasets(photos: Path) -> None:
    torch.manual_seed(0)
    model = itta.wrap(sequential_cnn(2).eval(), image_size=16, classes=("across", "down"))
    files = itta.predict(model, photos / "night")
    items = [item for item, _ in (Files(photos / "night")[i] for i in range(12))]
    assert files.classes == itta.predict(model, items).classes
    assert files.probabilities == itta.predict(model, Files(photos / "night")).probabilities
    x = load_dataset(photos, image_size=16).domain("night").read(range(12)).float() / 255
    with torch.no_grad():
        p, predicted = model(x).softmax(1).max(1)
    assert files.classes == tuple(model.classes[i] for i in predicted)
    torch.testing.assert_close(torch.tensor(files.probabilities), p, rtol=1e-5, atol=1e-5)
    assert itta.predict(model, x).classes == files.classes
    assert files[0][1:] == (files.classes[0], files.probabilities[0])
    assert sum(files.counts().values()) == len(files) == 12


@pytest.mark.parametrize("kind", ["train", "evaluate", "predict"])
def test_results_are_plain_values_text_and_html(kind: str, photos: Path) -> None:
    trained = itta.train(photos, "erm", "night", backbone=lambda: SmallCNN(8), **TINY)
    made = {
        "train": lambda: trained,
        "evaluate": lambda: itta.evaluate(itta.adapt(trained.model, "t3a"), photos, against=trained.model),
        "predict": lambda: itta.predict(trained.model, photos / "night"),
    }
    result: Any = made[kind]()
    assert json.loads(json.dumps(result.to_dict())) == result.to_dict()
    text, page = repr(result), result._repr_html_()
    assert "night" in text
    assert len(text.splitlines()) > 2
    assert page.count("<table>") == page.count("</svg>") == 1
    assert "%" in page


def test_names_in_html_are_escaped() -> None:
    from itta.run.results import Predictions

    page = Predictions("source", ("<b>.png",), ("<script>",), (0.5,))._repr_html_()
    assert "<script>" not in page
    assert "&lt;b&gt;.png" in page


def test_mistakes_are_one_line(photos: Path) -> None:
    with pytest.raises(InputError, match="unknown hyper-parameter 'learning_rate'"):
        itta.train(photos, "erm", learning_rate=1, backbone=SmallCNN, **TINY)
    with pytest.raises(InputError, match="unknown domain 'dusk'"):
        itta.train(photos, "erm", "dusk", backbone=SmallCNN, **TINY)
    with pytest.raises(InputError, match="no domain is left to train on"):
        itta.train(photos, "erm", ("dawn", "noon", "night"), backbone=SmallCNN, **TINY)
    with pytest.raises(InputError, match="expected a folder, a DomainDataset or a dict"):
        itta.train([1, 2], "erm")  # type: ignore[arg-type]
    model = itta.wrap(sequential_cnn(2), image_size=16, classes=("across", "up"))
    with pytest.raises(InputError, match="the data have the class 'down'"):
        itta.evaluate(model, photos)
    with pytest.raises(InputError, match=r"expected images \[B, 3, H, W\]"):
        itta.predict(model, torch.rand(3, 16, 16))
