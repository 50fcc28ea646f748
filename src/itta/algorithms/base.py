"""What every training method shares: a backbone, a head, an optimiser, and one step of learning."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from itta.errors import InputError
from itta.hparams import choice, hp, power
from itta.nn.backbone import After, Backbone, keep
from itta.nn.style_bank import StyleBank

Batch = tuple[Tensor, Tensor]  # images [B, 3, H, W] in [0, 1], labels [B]
Logs = dict[str, float]


@dataclass(frozen=True)
class Task:
    """What a method is to learn, and the networks to learn it with."""

    classes: tuple[str, ...]
    domains: tuple[str, ...]  # the source domains, in the order their batches come
    image_size: int
    make_backbone: Callable[[], Backbone]
    make_head: Callable[[int, int], nn.Module] = nn.Linear

    @property
    def n_classes(self) -> int:
        return len(self.classes)

    @property
    def n_domains(self) -> int:
        return len(self.domains)


@dataclass(frozen=True)
class Hparams:
    lr: float = hp(5e-5, "learning rate of Adam", power(10, -5, -3.5), small=(1e-3, power(10, -4.5, -2.5)))
    batch_size: int = hp(
        32, "images per source domain and step", power(2, 3, 5.5, whole=True),
        small=(64, power(2, 3, 9, whole=True)), domainnet=(32, power(2, 3, 5, whole=True)),
    )  # fmt: skip
    weight_decay: float = hp(0.0, "L2 penalty, added to the gradient", power(10, -6, -2), small=(0.0, None))
    resnet_dropout: float = hp(0.0, "dropout on the feature vector", choice(0.0, 0.1, 0.5), small=(0.0, None))


class Algorithm(nn.Module):
    """A method that learns from labelled batches, one per source domain.

    Most methods write `objective` only; one whose step is not "a loss, backward, Adam" writes `update`. All learned
    state lives in parameters, buffers and ``optimizers``, so a checkpoint needs no help from the method. Randomness
    comes from torch's global generator, which the training loop seeds before every step.
    """

    name: ClassVar[str]
    paper: ClassVar[str]
    Hparams: ClassVar[type[Any]] = Hparams
    min_batch: ClassVar[int] = 1  # images a step must have, over all domains

    def __init__(self, task: Task, hp: Any) -> None:
        super().__init__()
        self.task, self.hp = task, hp
        self.backbone = task.make_backbone()
        self.head = task.make_head(self.backbone.dim, task.n_classes)
        self.optimizers: dict[str, torch.optim.Optimizer] = {}
        self.style_bank: StyleBank | None = None
        self.add_optimizer("main", self.parameters(), hp.lr, hp.weight_decay)

    def add_optimizer(self, name: str, parameters: Any, lr: float, weight_decay: float = 0.0) -> None:
        self.optimizers[name] = torch.optim.Adam(parameters, lr=lr, weight_decay=weight_decay, fused=True)

    def features(self, x: Tensor, after: After = keep) -> Tensor:
        """f_θ(x), with dropout on the feature vector while training."""
        return dropout(self.backbone(x, after), self.hp.resnet_dropout if self.training else 0.0)

    def predict(self, x: Tensor) -> Tensor:
        """Images to logits [B, classes]."""
        return self.head(self.features(x))

    def forward(self, x: Tensor) -> Tensor:
        return self.predict(x)

    def objective(self, batches: Sequence[Batch]) -> tuple[Tensor, Logs]:
        """The loss of one step and what to log."""
        raise NotImplementedError(f"{type(self).__name__} defines neither objective nor update")

    def update(self, batches: Sequence[Batch]) -> Logs:
        """Take one training step."""
        loss, logs = self.objective(batches)
        optimizer = self.optimizers["main"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return logs

    def describe(self) -> dict[str, Any]:
        """The hyper-parameters as plain values."""
        return asdict(self.hp)

    def gather(self, batches: Sequence[Batch]) -> Batch:
        """One batch over all domains, domain order kept."""
        x, y = torch.cat([x for x, _ in batches]), torch.cat([y for _, y in batches])
        if len(x) < self.min_batch:
            raise InputError(
                f"{self.name} needs at least {self.min_batch} images a step, got {len(x)}: raise batch_size."
            )
        return x, y


def dropout(z: Tensor, p: float) -> Tensor:
    """Dropout with its mask drawn apart, so that a recorded pass can be differentiated again."""
    return z * (torch.rand_like(z) >= p) / (1 - p) if p > 0 else z
