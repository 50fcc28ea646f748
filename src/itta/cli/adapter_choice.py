"""Which adapter a command means."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from itta.hparams import parse_settings


def adapter_of(model: Path, adapter: str | None, preset: str, settings: Sequence[str]) -> dict[str, Any]:
    """The method and its settings: as given, else as stored with the model, else `itta+`."""
    from itta.adapters.itta import PRESETS
    from itta.run.tune import Candidate, stored_choice

    chosen = Candidate(adapter, {}) if adapter else stored_choice(model) or Candidate("itta+", {})
    presets = PRESETS[preset] if chosen.adapter == "itta" else {}
    return {"method": chosen.adapter, **chosen.settings, **presets, **parse_settings(settings)}
