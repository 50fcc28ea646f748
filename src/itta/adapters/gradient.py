"""The parts that adapters with gradient steps share: changing parameters, an optimiser, and a reset of both."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from itta.adapters.base import Adapter, check_at_least, moved, not_fixed
from itta.adapters.frozen import Frozen
from itta.hparams import hp
from itta.models.trained import Trained
from itta.nn.optimizer import load_optimizer_tensors, optimizer_tensors, with_prefix, without_prefix

if TYPE_CHECKING:
    from typing_extensions import Self


OptimizerName = Literal["adam", "sgd"]


@dataclass(frozen=True)
class Hparams:
    lr: float = hp(1e-3, "learning rate")
    steps: int = hp(1, "updates per batch")
    episodic: bool = hp(False, "start every batch from the trained model, instead of keeping the updates")
    optimizer: OptimizerName = hp("adam", "adam, or plain SGD")
    momentum: float = hp(0.0, "momentum of SGD")
    seed: int = hp(0, "seed of the random draws")


class GradientAdapter(Adapter):
    """An adapter that steps the parameters in its `scope`, and no others.

    A subclass defines `scope` and `adapt`. It keeps further state as tensors in ``extra``, which `fresh` fills; then
    reset, saving and episodic adaptation work without more code. A subclass also defines `freeze` if it does not
    predict with its present `network`.
    """

    Hparams = Hparams
    on_host: ClassVar[tuple[str, ...]] = ()  # entries of ``extra`` that the host reads, and that stay there

    @torch.inference_mode(False)
    def __init__(self, trained: Trained, hp: Any) -> None:
        super().__init__(trained, hp)
        check_at_least(1, hp, "steps")
        self.moving = self.scope()
        for p in self.moving.values():
            p.requires_grad_()
        self.start = {name: p.detach().clone() for name, p in self.moving.items()}
        self.reset()

    def scope(self) -> dict[str, nn.Parameter]:
        """Prepare the copied model, and return the parameters that change, by name."""
        raise NotImplementedError

    def fresh(self) -> dict[str, Tensor]:
        """Return the state besides parameters and optimiser, as before the first batch."""
        return {}

    def adapt(self, x: Tensor) -> Tensor:
        """Learn from a checked batch, and return its logits."""
        raise NotImplementedError

    def absorb(self, x: Tensor) -> None:
        """Learn from a checked batch. Define it if the logits need their own pass."""
        self.adapt(x)

    def freeze(self) -> nn.Module:
        """Return the present prediction as a module."""
        return Frozen(self.name, self.network())

    @torch.inference_mode(False)  # a caller who only predicts may have switched gradients off
    @torch.enable_grad()
    def forward(self, x: Tensor) -> Tensor:
        return self.adapt(self.begin(x)).detach()

    @torch.inference_mode(False)
    @torch.enable_grad()
    def observe(self, x: Tensor) -> None:
        self.absorb(self.begin(x))

    def begin(self, x: Tensor) -> Tensor:
        """Check the batch, send it to the network's device, and prepare to learn from it."""
        x = self.receive(x)
        if self.hp.episodic:
            self.forget()
        return x.clone() if x.is_inference() else x

    def frozen(self) -> nn.Module:
        if self.hp.episodic:
            raise not_fixed(f"{self.name} with episodic=True", "it keeps no update")
        return self.freeze()

    def step(self, loss: Tensor) -> None:
        """Take one step. Gradients are computed only for the parameters in scope."""
        self.optimizer.zero_grad()
        loss.backward(inputs=list(self.moving.values()))
        self.optimizer.step()
        self.latest_loss = loss.detach()

    @torch.inference_mode(False)
    def reset(self) -> None:
        self.restore()
        if self.hp.optimizer == "adam":
            self.optimizer: torch.optim.Optimizer = torch.optim.Adam(self.moving.values(), lr=self.hp.lr)
        else:
            self.optimizer = torch.optim.SGD(self.moving.values(), lr=self.hp.lr, momentum=self.hp.momentum)
        self.generator = torch.Generator().manual_seed(self.hp.seed)
        self.extra = self.fresh()

    def _apply(self, fn: Any, recurse: bool = True) -> "Self":
        places = {id(p): (m, key) for m in self.modules() for key, p in m.named_parameters(recurse=False)}
        on_host = {name: self.extra[name] for name in self.on_host if name in self.extra}
        super()._apply(fn, recurse)  # on some devices parameters become new objects
        self.extra |= on_host
        now = {name: m.get_parameter(key) for name, p in self.moving.items() for m, key in [places[id(p)]]}
        kept = [self.optimizer.state.pop(p, {}) for p in self.moving.values()]
        self.optimizer.param_groups[0]["params"] = list(now.values())
        for p, entry in zip(now.values(), kept):
            if entry:
                self.optimizer.state[p] = {k: v if k == "step" else moved(v, fn) for k, v in entry.items()}
        self.moving = now
        return self

    def forget(self) -> None:
        """Reset parameters and optimiser, and keep the random generator and ``extra``."""
        self.restore()
        self.optimizer.state.clear()

    @torch.no_grad()
    def restore(self) -> None:
        for name, p in self.moving.items():
            p.copy_(self.start[name])
            p.grad = None
        self.latest_loss = 0.0

    def state(self) -> dict[str, Tensor]:
        parts = {
            "moving.": {name: p.detach() for name, p in self.moving.items()},
            "optimizer.": optimizer_tensors(self.optimizer),
            "extra.": self.extra,
        }
        tensors = {k: v.clone() for prefix, part in parts.items() for k, v in with_prefix(prefix, part).items()}
        return {**tensors, "generator": self.generator.get_state()}

    @torch.inference_mode(False)
    @torch.no_grad()
    def load_state(self, state: Mapping[str, Tensor]) -> None:
        for name, value in without_prefix("moving.", state).items():
            self.moving[name].copy_(value)
        load_optimizer_tensors(self.optimizer, without_prefix("optimizer.", state))
        device = next(iter(self.moving.values())).device
        self.extra = {
            name: value.clone().to(self.extra[name].device if name in self.extra else device)
            for name, value in without_prefix("extra.", state).items()
        }
        self.generator.set_state(state["generator"])
        self.latest_loss = 0.0
