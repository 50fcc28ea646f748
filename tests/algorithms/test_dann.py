"""DANN and CDANN against their formulas, image by image. The penalty differentiates the domain loss of each image."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from itta.algorithms import Algorithm, Task
from itta.algorithms.base import Batch
from itta.nn.small_cnn import SmallCNN

SETTINGS = {"lr_g": 1e-2, "lr_d": 2e-2, "weight_decay_g": 1e-2, "weight_decay_d": 3e-2, "mlp_width": 8, "lambda_": 0.7}


def discriminate(model: Algorithm, u: Tensor) -> Tensor:
    """Run the discriminator on one vector, layer by layer."""
    layers = [m for m in model.discriminator if isinstance(m, nn.Linear)]
    assert len(layers) == model.hp.mlp_depth
    for layer in layers[:-1]:
        u = (layer.weight @ u + layer.bias).clamp(min=0)
        assert len(u) == model.hp.mlp_width
    return layers[-1].weight @ u + layers[-1].bias


def image_weights(model: Algorithm, y: Tensor) -> list[float]:
    """1/N, or 1/(N_k·K) for an image of class k."""
    labels = y.tolist()
    if model.name == "dann":
        return [1 / len(labels)] * len(labels)
    k = max(labels) + 1 if model.hp.reference else len(set(labels))
    return [1 / (labels.count(label) * k) for label in labels]


def naive_domain_loss(model: Algorithm, z: Tensor, y: Tensor, domains: Sequence[int]) -> Tensor:
    total, penalties = z.new_zeros(()), []
    for z_i, label, domain, weight in zip(z, y, domains, image_weights(model, y)):
        u = z_i + model.class_embeddings.weight[label] if model.name == "cdann" else z_i
        u = u if u.requires_grad else u.requires_grad_()
        logits = discriminate(model, u)
        ce = logits.exp().sum().log() - logits[domain]
        (g,) = torch.autograd.grad(ce, u, create_graph=True)
        penalties.append((g**2).sum())
        total = total + weight * ce
    return total + model.hp.grad_penalty * sum(penalties) / len(penalties)


def discriminator_parameters(model: Algorithm) -> list[nn.Parameter]:
    embeddings = model.class_embeddings.parameters() if model.name == "cdann" else ()
    return [*model.discriminator.parameters(), *embeddings]


def make_naive(naive_adam: Any, cross_entropy: Any) -> Callable[..., dict[str, float]]:
    """Make a function that does one update, of the discriminator or of the generator."""

    def naive(model: Algorithm, batches: list[Batch], state: SimpleNamespace) -> dict[str, float]:
        hp = model.hp
        if not hasattr(state, "t"):
            state.t, state.labels = 0, []
            state.d = naive_adam(hp.lr_d, hp.weight_decay_d, (hp.beta1, 0.9))
            state.g = naive_adam(hp.lr_g, hp.weight_decay_g, (hp.beta1, 0.9))
        state.t += 1
        y = torch.cat([y for _, y in batches])
        state.labels.append(set(y.tolist()))
        domains = [e for e, (x, _) in enumerate(batches) for _ in x]
        z = torch.cat([model.backbone(x) for x, _ in batches])
        if hp.resnet_dropout > 0:
            z = z * (torch.rand_like(z) >= hp.resnet_dropout) / (1 - hp.resnet_dropout)
        if state.t % (1 + hp.d_steps_per_g_step) < hp.d_steps_per_g_step:
            loss, parameters = naive_domain_loss(model, z.detach(), y, domains), discriminator_parameters(model)
            state.d.step(parameters, torch.autograd.grad(loss, parameters))
            return {"disc_loss": loss.item()}
        loss = cross_entropy(model.head(z), y) - hp.lambda_ * naive_domain_loss(model, z, y, domains)
        parameters = [*model.backbone.parameters(), *model.head.parameters()]
        state.g.step(parameters, torch.autograd.grad(loss, parameters))
        return {"gen_loss": loss.item()}

    return naive


def assert_same_parameters(run: SimpleNamespace) -> None:
    torch.testing.assert_close(
        dict(run.algorithm.named_parameters()), dict(run.model.named_parameters()), rtol=1e-9, atol=1e-9
    )


@pytest.mark.parametrize("name", ["dann", "cdann"])
@pytest.mark.parametrize(
    ("sizes", "settings"),
    [
        ((4, 4, 4), {}),
        ((4, 4, 4), {"grad_penalty": 3.0}),
        ((6, 5, 4), {"grad_penalty": 3.0, "d_steps_per_g_step": 2, "mlp_depth": 4}),
        ((4, 3), {"grad_penalty": 0.5, "beta1": 0.0, "resnet_dropout": 0.5, "d_steps_per_g_step": 2}),
    ],
)
def test_five_updates(
    name: str,
    sizes: tuple[int, ...],
    settings: Any,
    assert_matches_naive: Callable[..., Any],
    naive_adam: Any,
    cross_entropy: Any,
) -> None:
    naive = make_naive(naive_adam, cross_entropy)
    assert_same_parameters(assert_matches_naive(name, naive, sizes=sizes, steps=5, **SETTINGS | settings))


@pytest.mark.parametrize("reference", [False, True])
def test_cdann_with_a_class_absent(
    reference: bool, assert_matches_naive: Callable[..., Any], naive_adam: Any, cross_entropy: Any
) -> None:
    naive = make_naive(naive_adam, cross_entropy)
    run = assert_matches_naive(
        "cdann", naive, sizes=(1, 1, 1), steps=6, reference=reference, grad_penalty=1.0, **SETTINGS
    )
    assert_same_parameters(run)
    assert any(len(labels) <= max(labels) for labels in run.state.labels)


@pytest.mark.parametrize("name", ["dann", "cdann"])
def test_one_source_cut_into_three(
    name: str, assert_matches_naive: Callable[..., Any], naive_adam: Any, cross_entropy: Any
) -> None:
    naive = make_naive(naive_adam, cross_entropy)
    assert_same_parameters(assert_matches_naive(name, naive, sizes=(8,), steps=4, grad_penalty=1.0, **SETTINGS))


@pytest.mark.parametrize("name", ["dann", "cdann"])
@pytest.mark.parametrize("d", [1, 2])
def test_one_source_as_it_is_is_erm_with_fewer_steps(
    name: str, d: int, build: Callable[..., Algorithm], toy_batches: Callable[..., list[Batch]]
) -> None:
    task = Task(("a", "b", "c"), ("warm",), 16, lambda: SmallCNN(width=8))
    settings = SETTINGS | {"single_source": "native", "d_steps_per_g_step": d, "grad_penalty": 1.0}
    algorithm, erm = build(name, task, **settings).double(), build("erm", task).double()
    erm.add_optimizer("main", erm.parameters(), 1e-2, 1e-2, (0.5, 0.9))
    for t in range(1, 7):
        x, y = toy_batches(t)[0]
        logs = algorithm.update([(x.double(), y)])
        if t % (1 + d) == d:
            assert logs["gen_loss"] == pytest.approx(erm.update([(x.double(), y)])["loss"], rel=1e-12)
        else:
            assert logs == {"disc_loss": 0.0}
    for p, q in zip([*algorithm.backbone.parameters(), *algorithm.head.parameters()], erm.parameters()):
        torch.testing.assert_close(p, q, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["dann", "cdann"])
def test_second_derivatives(name: str, build: Callable[..., Algorithm]) -> None:
    """Compare the gradient of the domain loss, with penalty, with finite differences in features and discriminator."""
    algorithm = build(name, grad_penalty=2.0, mlp_width=4).double()
    torch.manual_seed(1)
    z = torch.randn(3, 16, dtype=torch.double, requires_grad=True)
    y, domain = torch.tensor([0, 2, 2]), torch.tensor([0, 0, 1])
    assert torch.autograd.gradcheck(lambda z: algorithm.domain_loss(z, y, domain), z)
    parameters = tuple(discriminator_parameters(algorithm))
    fixed = z.detach()
    assert torch.autograd.gradcheck(lambda *_: algorithm.domain_loss(fixed.clone(), y, domain), parameters)


@pytest.mark.parametrize("name", ["dann", "cdann"])
@pytest.mark.parametrize("n", [1, 3])
def test_equal_images_of_one_class_stay_finite(name: str, n: int, build: Callable[..., Algorithm]) -> None:
    algorithm = build(name, grad_penalty=10.0, lambda_=100.0, lr_g=1e-2, lr_d=1e-2)
    batches = [(torch.full((n, 3, 16, 16), 0.5), torch.full((n,), 2))] * 2
    for _ in range(6):
        assert all(abs(v) < float("inf") for v in algorithm.update(batches).values())
    assert all(p.isfinite().all() for p in algorithm.parameters())
