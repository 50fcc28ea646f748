"""The parts that all training methods share: a backbone, a head, an optimiser, and one training step."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from itta.errors import InputError
from itta.functional.transfers import fetch_numbers
from itta.hparams import choice, hp, power
from itta.models.trained import SecondViews, Trained
from itta.nn.backbone import After, Backbone, keep

Batch = tuple[Tensor, Tensor]  # images [B, 3, H, W] in [0, 1], labels [B]
Logs = Mapping[str, Tensor | float]  # values to log; tensors of one value may stay on their device
Numbers = dict[str, float]
PSEUDO_DOMAINS = 3  # parts that a single source domain is split into


@dataclass(frozen=True)
class Task:
    """The classes and domains of a training, and functions that make its networks."""

    classes: tuple[str, ...]
    domains: tuple[str, ...]  # the source domains, in the order of their batches
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
    """The requirements of a method, and other facts that help to choose one."""

    domains: int = 1  # least number of source domains, real or simulated
    images: int = 1  # least number of images per domain and step
    batch: int = 1  # least number of images per step, over all domains
    single_source: Literal["native", "split", "shuffle"] = "native"
    """How the method learns from one source domain. native: as from several. split: each batch is split at random into
    pseudo-domains. shuffle: images are paired within the shuffled batch."""
    networks: tuple[str, ...] = ()  # networks besides backbone and head, learned or fixed
    batch_prediction: bool = False  # a prediction depends on the other images of its batch
    second_order: str = ""  # the part that is differentiated twice


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
        "split", "with one source domain: simulate several (split), or use the formula unchanged (native)"
    )


class Algorithm(Trained):
    """A method that learns from labelled batches, one per source domain.

    Most methods define `objective` only. A method defines `update` if its step is not "loss, backward, Adam". All
    learned state is in parameters, buffers and ``optimizers``, so a checkpoint holds all of it. Random numbers come
    from torch's global generator, which the training loop seeds before every step.
    """

    name: ClassVar[str]
    paper: ClassVar[str]
    Hparams: ClassVar[type[Any]] = Hparams
    needs: ClassVar[Needs] = Needs()

    def __init__(self, task: Task, hp: Any) -> None:
        super().__init__(task.classes, task.image_size)
        self.task, self.hp = task, hp
        self.batch_prediction = self.needs.batch_prediction
        named = {"kind": "view", "alpha": "mix_alpha", "sigma": "sfa_sigma"}
        self.second_views = SecondViews(**{k: getattr(hp, name) for k, name in named.items() if hasattr(hp, name)})
        self.check_needs()
        self.backbone = task.make_backbone()
        self.head = task.make_head(self.backbone.dim, task.n_classes)
        self.optimizers: dict[str, torch.optim.Optimizer] = {}
        self.add_optimizer("main", self.parameters(), hp.lr, hp.weight_decay)

    def add_optimizer(
        self,
        name: str,
        parameters: Any,
        lr: float,
        weight_decay: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.999),
    ) -> None:
        """Make an Adam under a name, or replace the one of that name."""
        self.optimizers[name] = torch.optim.Adam(parameters, lr, betas, weight_decay=weight_decay, fused=True)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Algorithm":
        """Move or convert the model. The count of steps stays on the host, which reads it without waiting."""
        steps = self._buffers.get("step")
        super()._apply(fn, recurse)
        if steps is not None:
            self._buffers["step"] = steps
        return self

    def features(self, x: Tensor, after: After = keep) -> Tensor:
        """Return f_θ(x), in training with dropout on the feature vector."""
        return self.dropout(self.backbone(self.inputs(x), after))

    def dropout(self, z: Tensor) -> Tensor:
        return dropout(z, self.hp.resnet_dropout if self.training else 0.0)

    def objective(self, batches: Sequence[Batch]) -> tuple[Tensor, Logs]:
        """Return the loss of one step and the values to log."""
        raise NotImplementedError(f"{type(self).__name__} defines neither objective nor update")

    def update(self, batches: Sequence[Batch]) -> Numbers:
        """Take one training step, and return the values to log."""
        loss, logs = self.objective(batches)
        optimizer = self.optimizers["main"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return fetch_numbers(logs)  # the only time that the host waits for the device

    def describe(self) -> dict[str, Any]:
        """Return the hyper-parameters as plain values, without ``single_source`` if there are several domains."""
        values = asdict(self.hp)
        if self.task.n_domains > 1:
            del values["single_source"]
        elif self.needs.single_source == "native":
            values["single_source"] = "native"
        return values

    def gather(self, batches: Sequence[Batch]) -> Batch:
        """Join the batches of all domains into one, in the order of the domains."""
        x, y = torch.cat([x for x, _ in batches]), torch.cat([y for _, y in batches])
        self.check_images("step", len(x), self.needs.batch)
        return x, y

    def per_domain(self, batches: Sequence[Batch]) -> list[Batch]:
        """Return one batch per domain, or per pseudo-domain if a single source domain is split."""
        if self.splits:
            batches = cut_at_random(batches[0])
        if len(batches) != self.n_domains:
            raise InputError(f"{self.name} was built for {self.n_domains} source domains, got {len(batches)} batches.")
        least = max(self.needs.images, 2 if self.splits else 1)
        self.check_images("domain and step", min(len(x) for x, _ in batches), least)
        return list(batches)

    @property
    def splits(self) -> bool:
        """Whether a single source domain is split into pseudo-domains."""
        return self.task.n_domains == 1 and (self.needs.single_source, self.hp.single_source) == ("split", "split")

    @property
    def n_domains(self) -> int:
        """The number of domains that the method sees."""
        return PSEUDO_DOMAINS if self.splits else self.task.n_domains

    def check_needs(self) -> None:
        """Refuse a task that the method cannot work on, before anything is computed."""
        if self.n_domains < self.needs.domains:
            cure = "set single_source=split" if self.task.n_domains == 1 else "name more domains"
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
    """Split one batch into pseudo-domains: shuffle it, then cut it into parts of equal size, up to one image."""
    x, y = batch
    order = torch.randperm(len(x), device=x.device)
    return [(x[part], y[part]) for part in order.tensor_split(PSEUDO_DOMAINS)]


def dropout(z: Tensor, p: float) -> Tensor:
    """Apply dropout with a mask drawn beforehand, so that a tape can replay the pass."""
    return z * (torch.rand_like(z) >= p) / (1 - p) if p > 0 else z
