"""The flags that choose an adapter, shared by the verbs that adapt."""

import sys
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from itta.cli.screen import NameValues, say
from itta.errors import InputError
from itta.hparams import check_names, parse_settings
from itta.registry import look_up
from itta.schema import damaged

if TYPE_CHECKING:
    from itta.adapters import Adapter
    from itta.models.trained import Trained

NOT_ADAPTED = (
    "itta: itta tune found no adapter that helps {} and chose not to adapt it; the model answers as trained. To adapt "
    "it all the same, name an --adapter."
)
DEFAULT_ADAPTER = "itta+"


@dataclass(frozen=True)
class AdapterFlags:
    """The test-time method, and its settings."""

    adapter: str | None = None
    """Test-time method (itta list adapters), package.module:Name, or source for none. Without this flag: the choice of
    itta tune for this model, or itta+."""
    preset: str = "paper"
    """Settings of itta: paper, as we read the paper, or released, as its released code has them."""
    settings: NameValues = ()
    """Settings of the adapter, name=value."""
    guard: bool = False
    """Watch the adapter and undo its changes when they do harm. itta+ is always watched."""

    def make(self, trained: "Trained", model: Path) -> "Adapter":
        """Make the adapter for a trained model from a directory."""
        from itta.adapters import adapt, find_adapter
        from itta.adapters.itta import PRESETS
        from itta.store.adapter_choice import FILE, Candidate, read_choice

        given = look_up("preset", self.preset, PRESETS)
        stored = None if self.adapter else read_choice(model)
        chosen = stored or Candidate(self.adapter or DEFAULT_ADAPTER, {})
        method = find_adapter(chosen.adapter, model / FILE if stored else None)
        if stored and chosen.adapter == "source":
            say(NOT_ADAPTED.format(model), file=sys.stderr)
        if self.preset != "paper" and chosen.adapter != "itta":
            raise InputError(f"--preset {self.preset} goes with --adapter itta, and the adapter is {chosen.adapter}.")
        preset = given if chosen.adapter == "itta" else {}
        settings = {**chosen.settings, **preset, **parse_settings(self.settings)}
        by_file = stored is not None and settings == chosen.settings
        with damaged(model / FILE, "delete it, or run itta tune again") if by_file else nullcontext():
            check_names(method.Hparams, settings)
            return adapt(trained, method, guard=self.guard or None, **settings)
