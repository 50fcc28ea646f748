"""MEMO. MEMO: Test Time Robustness via Adaptation and Augmentation. Zhang, Levine, Finn, NeurIPS 2022.
https://arxiv.org/abs/2110.09506

Three things differ here. The views are those of training (crop, flip, colour jitter, grey); the paper uses AugMix,
which also rotates, shears and posterises. ``optimizer=adam`` is Adam; the paper uses AdamW, with weight decay. The
present variance of batch normalisation is the mean squared deviation, with divisor n, as a network in training uses it;
the released code divides by n − 1, where n counts the images and positions of a map.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from itta.adapters import gradient
from itta.adapters.base import Needs, check_at_least
from itta.adapters.gradient import GradientAdapter
from itta.adapters.scopes import head, whole_backbone
from itta.functional.augment import augment, draw_augmentation
from itta.functional.entropy import entropy_of_mean
from itta.hparams import hp
from itta.nn.batch_norm import mix_statistics


@dataclass(frozen=True)
class Hparams(gradient.Hparams):
    lr: float = hp(2.5e-4, "learning rate")
    episodic: bool = hp(True, "start every image from the trained model, instead of keeping the updates")
    optimizer: gradient.OptimizerName = hp("sgd", "adam, or plain SGD")
    views: int = hp(32, "B: augmented views of each image")
    prior: float = hp(16.0, "N: the number of images that the stored statistics of batch normalisation count as")


class MEMO(GradientAdapter):
    """For each image, all weights step on the entropy of the mean prediction over B augmented views a_b(x),

    L = H(p̄),  p̄ = 1/B Σ_b softmax f(a_b(x)).

    Then the image is predicted, and the trained weights are restored.

    Batch normalisation uses the statistics (N · stored + 1 · present) / (N + 1), for the views and for the image.
    """

    name = "memo"
    paper = "Zhang et al., MEMO: Test Time Robustness via Adaptation and Augmentation, NeurIPS 2022"
    Hparams = Hparams
    needs = Needs(changes="all weights, reset for each image")
    predicts = "after"

    def scope(self) -> dict[str, nn.Parameter]:
        check_at_least(1, self.hp, "views")
        check_at_least(0, self.hp, "prior")
        share = 1 / (self.hp.prior + 1)
        mix_statistics(self.model.backbone, lambda n: share)  # all views together count as one image
        return whole_backbone(self.model) | head(self.model)

    def adapt(self, x: Tensor) -> Tensor:
        logits = []
        for i, image in enumerate(x.split(1)):
            if self.hp.episodic and i > 0:
                self.forget()
            logits.append(self.adapt_image(image))
        return torch.cat(logits)

    def adapt_image(self, image: Tensor) -> Tensor:
        drawn = draw_augmentation(self.hp.views, self.generator)
        views = augment(image.expand(self.hp.views, -1, -1, -1), drawn)
        for _ in range(self.hp.steps):
            self.step(entropy_of_mean(self.model.predict(views)))
        with torch.no_grad():
            return self.model.predict(image)
