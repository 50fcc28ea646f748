"""Training methods. ``ALGORITHMS`` is the registry: the command line, the docs and the tests read it."""

from pathlib import Path

from itta.algorithms.arm import ARM
from itta.algorithms.base import Algorithm, Task
from itta.algorithms.cad import CAD, CondCAD
from itta.algorithms.consistency import Consistency
from itta.algorithms.coral import CORAL
from itta.algorithms.dann import CDANN, DANN
from itta.algorithms.erm import ERM
from itta.algorithms.feature_critic import FeatureCritic
from itta.algorithms.fish import Fish
from itta.algorithms.fishr import Fishr
from itta.algorithms.groupdro import GroupDRO
from itta.algorithms.irm import IRM
from itta.algorithms.itta import ITTA
from itta.algorithms.metareg import MetaReg
from itta.algorithms.mixstyle import MixStyle
from itta.algorithms.mixup import Mixup
from itta.algorithms.mldg import MLDG
from itta.algorithms.mmd import MMD
from itta.algorithms.mt3 import MT3
from itta.algorithms.mtl import MTL
from itta.algorithms.rsc import RSC
from itta.algorithms.sagnet import SagNet
from itta.algorithms.sd import SD
from itta.algorithms.selfreg import SelfReg
from itta.algorithms.ttt import TTT
from itta.algorithms.ttt_plus import TTTPlus
from itta.algorithms.vrex import VREx
from itta.registry import find_class

ALGORITHMS: dict[str, type[Algorithm]] = {
    a.name: a
    for a in (
        ERM, IRM, GroupDRO, Mixup, MLDG, CORAL, MMD, DANN, CDANN, MTL, SagNet, ARM, VREx, RSC, SelfReg, MixStyle, Fish,
        SD, CAD, CondCAD, Fishr, FeatureCritic, MetaReg, TTT, TTTPlus, MT3, Consistency, ITTA,
    )
}  # fmt: skip


def find_algorithm(name: str, file: Path | None = None) -> type[Algorithm]:
    """Return the method of a registered name, or import the user's own from ``package.module:Class``.

    ``file`` is the file that holds the name, if a file does. Then only registered names count.
    """
    return find_class("algorithm", name, ALGORITHMS, Algorithm, file)


__all__ = ["ALGORITHMS", "Algorithm", "Task", "find_algorithm"]
