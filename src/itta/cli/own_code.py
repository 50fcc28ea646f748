"""The flags that name a user's own classes, shared by the verbs that load a model."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from itta.store.model import OwnCode


@dataclass(frozen=True)
class OwnCodeFlags:
    algorithm: str | None = None
    """Your own training method, package.module:Class, if the model was trained with one. A model's files never make
    itta import code."""
    backbone: str | None = None
    """Your own network, package.module:Name, if the model has one."""
    module: str | None = None
    """Your own network, package.module:Name, if itta adopt made the model."""

    def given(self) -> "OwnCode":
        """Return the classes that the user named."""
        from itta.store.model import OwnCode

        return OwnCode(self.algorithm, self.backbone, self.module)
