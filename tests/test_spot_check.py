"""A trial that is trained again has the published records, byte for byte; one changed digit is found."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import spot_check
from itta import records
from itta.errors import InputError
from itta.records.collection import collect_records, in_order
from itta.settings import Adaptation
from itta.sweep.launch import LaunchSettings, run_sweep
from itta.sweep.plan import Sweep


@pytest.fixture
def published(tmp_path: Path, inline: None) -> Path:
    """The joined records of a tiny sweep with two adapters in two orders."""
    domains = ("twemoji", "fluent-3d", "fluent-mono", "noto-mono")
    sweep = Sweep(
        datasets={"emoji": domains},
        algorithms=("erm", "coral"),
        targets=("noto-mono",),
        hparams_seeds=1,
        trial_seeds=1,
        overrides={"batch_size": "4"},
        eval_every=1,
        adaptation=Adaptation(("t3a", "itta+"), batch_size=64, orders=("iid", "dirichlet")),
        backbone="small_cnn",
        weights="none",
        image_size=16,
        steps=2,
    )
    assert run_sweep(sweep, tmp_path / "sweep", LaunchSettings()) == {}
    file = tmp_path / "published.jsonl"
    records.write_all(file, in_order(collect_records([tmp_path / "sweep"]).records))
    return file


@pytest.mark.slow
def test_the_same_trial_gives_the_same_bytes(
    published: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = spot_check.Options(published, 5, eval_every=1, out=tmp_path / "again")
    spot_check.main(options)
    printed = capsys.readouterr().out
    assert "torch" in printed
    assert "1 thread(s) a trial" in printed
    assert "same       coral on noto-mono, seed 0, 2 steps: 6 records" in printed
    assert "all 2 trials have the published records, byte for byte" in printed
    for folder in (tmp_path / "again").iterdir():
        assert (folder / "published.jsonl").read_bytes() == (folder / "again.jsonl").read_bytes()
    one = next(r for r in records.read(published) if r.adapter == "t3a" and r.trial.algorithm == "erm")
    changed = replace(one, accuracy={"noto-mono": {**one.accuracy["noto-mono"], "in": 0.123}})
    records.append(published, changed)
    found = [r for r in records.read(published) if r != one]
    records.write_all(published, found)
    with pytest.raises(SystemExit, match="1 of 1 trials differ: is this the same kind of CPU"):
        spot_check.main(replace(options, only=("erm",), skip=("itta+",), out=tmp_path / "other"))
    printed = capsys.readouterr().out
    assert "t3a at step 2" in printed
    assert "accuracy.noto-mono.in was 0.123, is" in printed
    assert "itta+" not in printed


def test_another_draw_takes_other_trials_and_an_unknown_method_is_refused() -> None:
    file = spot_check.Options().records
    published = list(records.read(Path(__file__).parents[1] / file))
    first, other = (
        [lines[0].trial.key for lines in spot_check.draw_trials(published, spot_check.Options(draw=draw))]
        for draw in (0, 1)
    )
    assert len(set(first)) == 3
    assert first != other
    with pytest.raises(InputError, match="has no trial of none"):
        spot_check.draw_trials(published, spot_check.Options(only=("none",)))
