"""The preparation of a training: its data must suffice, and its untrained model is built."""

from itta.algorithms import Algorithm, Task, find_algorithm
from itta.data.dataset import DomainDataset, Split
from itta.errors import InputError
from itta.hparams import sample, sensible_numbers
from itta.nn import Backbone, make_backbone
from itta.seeds import seed_all
from itta.trial import Trial


def check_held_out(trial: Trial, splits: dict[str, Split]) -> None:
    """Refuse a domain too small to measure on."""
    for domain in (*trial.train_domains, *trial.test_domains):
        train, held_out = splits[domain]
        if len(held_out) == 0 or len(train) == 0:
            raise InputError(
                f"domain {domain!r} has {len(train) + len(held_out)} images: too few to hold some out and train on the "
                "rest. Give it at least 5."
            )


def build(trial: Trial, dataset: DomainDataset) -> Algorithm:
    """Build the untrained algorithm of a trial; a pure function of the trial."""
    cls = find_algorithm(trial.algorithm)
    assert trial.regime != "auto"
    hp = sample(cls.Hparams, trial.hparams_seed, trial.trial_seed, trial.regime, **trial.overrides)
    seed_all(trial.seed)
    task = Task(
        dataset.classes,
        trial.train_domains,
        trial.image_size,
        lambda: set_bn(make_backbone(trial.backbone, trial.weights, trial.image_size), trial.bn),
    )
    with sensible_numbers(hp):
        return cls(task, hp).train()


def set_bn(backbone: Backbone, bn: str) -> Backbone:
    """Freeze batch normalisation or let it live, as the trial says; auto leaves it as the network was made."""
    if bn != "auto":
        backbone.frozen_bn = bn == "frozen"
    return backbone.train(backbone.training)
