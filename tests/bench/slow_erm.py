"""ERM that takes its time, so that a test can interfere."""

import os
import time

from itta.algorithms.base import Batch, Logs
from itta.algorithms.erm import ERM


class SlowERM(ERM):
    """ERM."""

    name = "slow"

    def update(self, batches: "list[Batch]") -> Logs:
        time.sleep(float(os.environ.get("ITTA_TEST_SECONDS", "0.3")))
        return super().update(batches)
