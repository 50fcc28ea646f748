"""The flags that name a user's own classes, shared by the verbs that load a model."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from itta.store.model import OwnCode
    from itta.trial import Trial


@dataclass(frozen=True)
class OwnCodeFlags:
    """Your own classes, if the model has some. The files of a model never make itta import code."""

    algorithm: str | None = None
    """Your own training method, package.module:Class, if the model was trained with one."""
    backbone: str | None = None
    """Your own network, package.module:Name, if the model has one."""
    module: str | None = None
    """Your own network, package.module:Name, if itta adopt made the model."""

    def given(self) -> "OwnCode":
        """Return the classes that the user named."""
        from itta.store.model import OwnCode

        return OwnCode(self.algorithm, self.backbone, self.module)


def flags_of_own_classes(trial: "Trial") -> list[str]:
    """Return the flags with which a later command names the user's own classes of a training."""
    words = []
    for flag, name in (("--algorithm", trial.algorithm), ("--backbone", trial.backbone)):
        if ":" in name.removeprefix("timm:"):  # the files of a model do not make itta import or download it
            words += [flag, name]
    return words
