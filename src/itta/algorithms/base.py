"""What every training method shares: a backbone, a head, an optimiser, and one step of learning."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from itta.errors import InputError
from itta.hparams import choice, hp, power
from itta.nn.backbone import After, Backbone, keep
from itta.nn.style_bank import StyleBank

Batch = tuple[Tensor, Tensor]  # images [B, 3, H, W] in [0, 1], labels [B]
Logs = dict[str, float]
PSEUDO_DOMAINS = 3  # a lone source domain is cut into so many


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
class Needs:
    """What a method asks of its task, and what to know before choosing it."""

    domains: int = 1  # source domains, real or simulated
    images: int = 1  # images per domain and step
    batch: int = 1  # images per step, over all domains
    single_source: Literal["native", "split", "shuffle"] = "native"
    """How it learns from one source domain: as it is; from a batch cut at random into pseudo-domains; or from pairs
    within the shuffled batch."""
    networks: tuple[str, ...] = ()  # learned or fixed, beside backbone and head
    batch_prediction: bool = False  # a prediction depends on the other images of its batch
    second_order: str = ""  # what is differentiated twice


@dataclass(frozen=True)
class Hparams:
    lr: float = hp(5e-5, "learning rate of Adam", power(10, -5, -3.5), small=(1e-3, power(10, -4.5, -2.5)))
    batch_size: int = hp(
        32, "images per source domain and step", power(2, 3, 5.5, whole=True),
        small=(64, power(2, 3, 9, whole=True)), domainnet=(32, power(2, 3, 5, whole=True)),
    )  # fmt: skip
    weight_decay: float = hp(0.0, "L2 penalty, added to the gradient", power(10, -6, -2), small=(0.0, None))
    resnet_dropout: float = hp(0.0, "dropout on the feature vector", choice(0.0, 0.1, 0.5), small=(0.0, None))
    single_source: Literal["split", "native"] = hp(
        "split", "given one source domain, simulate several (split) or run the formula as it is (native)"
    )


class Algorithm(nn.Module):
    """A method that learns from labelled batches, one per source domain.

    Most methods write `objective` only; one whose step is not "a loss, backward, Adam" writes `update`. All learned
    state lives in parameters, buffers and ``optimizers``, so a checkpoint needs no help from the method. Randomness
    comes from torch's global generator, which the training loop seeds before every step.
    """

    name: ClassVar[str]
    paper: ClassVar[str]
    Hparams: ClassVar[type[Any]] = Hparams
    needs: ClassVar[Needs] = Needs()

    def __init__(self, task: Task, hp: Any) -> None:
        super().__init__()
        self.task, self.hp = task, hp
        self.check_needs()
        self.backbone = task.make_backbone()
        self.head = task.make_head(self.backbone.dim, task.n_classes)
        self.optimizers: dict[str, torch.optim.Optimizer] = {}
        self.style_bank: StyleBank | None = None
        self.fisher: dict[str, Tensor] | None = None  # by parameter, of normalisation layers
        self.differences: dict[str, Tensor] | None = None  # "low" and "high" of what f_w sees, [dim] each
        self.confusions: dict[str, Tensor] | None = None  # "mean" answers [C, C], "temperature", "prior"
        self.add_optimizer("main", self.parameters(), hp.lr, hp.weight_decay)

    def add_optimizer(
        self,
        name: str,
        parameters: Any,
        lr: float,
        weight_decay: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.999),
    ) -> None:
        self.optimizers[name] = torch.optim.Adam(parameters, lr, betas, weight_decay=weight_decay, fused=True)

    def inputs(self, x: Tensor) -> Tensor:
        """Images to what the backbone reads; a method that adds a channel does it here."""
        return x

    def features(self, x: Tensor, after: After = keep) -> Tensor:
        """f_θ(x), with dropout on the feature vector while training."""
        return self.dropout(self.backbone(self.inputs(x), after))

    def dropout(self, z: Tensor) -> Tensor:
        return dropout(z, self.hp.resnet_dropout if self.training else 0.0)

    def classify(self, z: Tensor) -> Tensor:
        """Features to logits, as in prediction."""
        return self.head(z)

    def predict(self, x: Tensor) -> Tensor:
        """Images to logits [B, classes]."""
        return self.classify(self.features(x))

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
        """The hyper-parameters as plain values; how one source domain was treated is left out where there are more."""
        values = asdict(self.hp)
        if self.task.n_domains > 1:
            del values["single_source"]
        elif self.needs.single_source == "native":
            values["single_source"] = "native"
        return values

    def gather(self, batches: Sequence[Batch]) -> Batch:
        """One batch over all domains, domain order kept."""
        x, y = torch.cat([x for x, _ in batches]), torch.cat([y for _, y in batches])
        self.check_images("step", len(x), self.needs.batch)
        return x, y

    def per_domain(self, batches: Sequence[Batch]) -> list[Batch]:
        """The batches as the method is to see them: one per domain, or per pseudo-domain of a lone source."""
        if self.splits:
            batches = cut_at_random(batches[0])
        if len(batches) != self.n_domains:
            raise InputError(f"{self.name} was built for {self.n_domains} source domains, got {len(batches)} batches.")
        least = max(self.needs.images, 2 if self.splits else 1)
        self.check_images("domain and step", min(len(x) for x, _ in batches), least)
        return list(batches)

    @property
    def splits(self) -> bool:
        """Whether a lone source domain is cut into pseudo-domains."""
        return self.task.n_domains == 1 and (self.needs.single_source, self.hp.single_source) == ("split", "split")

    @property
    def n_domains(self) -> int:
        """How many domains the method sees."""
        return PSEUDO_DOMAINS if self.splits else self.task.n_domains

    def check_needs(self) -> None:
        """Refuse, before anything is computed, a task the method cannot work on."""
        if self.n_domains < self.needs.domains:
            cure = "set single_source=split" if self.task.n_domains == 1 else "name more"
            raise InputError(
                f"{self.name} needs at least {self.needs.domains} source domains, got {self.n_domains}: {cure}."
            )
        n = self.hp.batch_size
        self.check_images("step", n * self.task.n_domains, self.needs.batch)
        if self.splits:
            self.check_images("domain and step", n, 2 * PSEUDO_DOMAINS)
        self.check_images("domain and step", n, self.needs.images)

    def check_images(self, per: str, got: int, least: int) -> None:
        if got < least:
            raise InputError(f"{self.name} needs at least {least} images per {per}, got {got}: raise batch_size.")


def cut_at_random(batch: Batch) -> list[Batch]:
    """Pseudo-domains of one batch: shuffled, then cut into parts whose sizes differ by at most one."""
    x, y = batch
    order = torch.randperm(len(x), device=x.device)
    return [(x[part], y[part]) for part in order.tensor_split(PSEUDO_DOMAINS)]


def dropout(z: Tensor, p: float) -> Tensor:
    """Dropout with its mask drawn apart, so that a recorded pass can be differentiated again."""
    return z * (torch.rand_like(z) >= p) / (1 - p) if p > 0 else z
