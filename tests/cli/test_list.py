"""itta list and the help: every registered name, with what it needs; and how the command ends."""

import json
import subprocess
import sys
from dataclasses import asdict

import pytest

from itta.adapters import ADAPTERS
from itta.algorithms import ALGORITHMS
from itta.cli import VERBS as TABLE
from itta.cli import main
from itta.data.emoji import STYLES
from itta.estimators import ESTIMATORS
from itta.hparams import fields
from itta.nn import BACKBONES
from itta.settings import TrainSettings

EXPECTED = (
    "demo", "train", "adapt", "tune", "predict", "estimate", "check",
    "sweep", "sweep-status", "report", "records", "cam", "inspect",
    "export", "profile", "data", "list",
)  # fmt: skip


def test_list_shows_every_registered_name(capsys):
    assert main(["list"]) == 0
    printed = capsys.readouterr().out
    for name in (*ALGORITHMS, *ADAPTERS, *ESTIMATORS, *BACKBONES, *STYLES, "emoji"):
        assert name in printed


def test_list_as_json_carries_the_hyper_parameters(capsys):
    assert main(["list", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["algorithms"]) == set(ALGORITHMS)
    assert set(found["adapters"]) == set(ADAPTERS)
    assert set(BACKBONES) <= set(found["backbones"])
    for kind, registry in (("algorithms", ALGORITHMS), ("adapters", ADAPTERS)):
        for name, cls in registry.items():
            assert set(found[kind][name]["hparams"]) == {f.name for f in fields(cls.Hparams)}
    assert main(["list", "adapters", "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)) == {"adapters"}


def test_list_as_json_tells_needs_ranges_and_what_is_a_methods_own(capsys):
    assert main(["list", "algorithms", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["algorithms"]
    for name, cls in ALGORITHMS.items():
        assert found[name]["about"] == cls.paper
        assert found[name]["needs"] == json.loads(json.dumps(asdict(cls.needs)))
    assert found["erm"]["hparams"]["lr"] == {
        "default": 5e-5,
        "searched": "10^U(-5, -3.5)",
        "about": "learning rate of Adam",
        "own": False,
        "regimes": {"small": {"default": 1e-3, "searched": "10^U(-4.5, -2.5)"}},
    }
    own = {name: {h for h, facts in entry["hparams"].items() if facts["own"]} for name, entry in found.items()}
    assert own["erm"] == set()
    assert own["irm"] == {"irm_lambda", "irm_penalty_anneal_iters"}
    assert own["arm"] == {"batch_size", "reference"}  # with a default of its own
    assert own["itta"] > own["consistency"]
    assert found["arm"]["hparams"]["batch_size"]["searched"] is None


@pytest.mark.parametrize("kind", ["algorithms", "adapters"])
def test_one_list_shows_needs_and_own_hyper_parameters(kind, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    assert main(["list", kind, "--json"]) == 0
    entries = json.loads(capsys.readouterr().out)[kind]
    assert main(["list", kind]) == 0
    printed = capsys.readouterr().out
    for entry in entries.values():
        assert entry["about"] in printed
        assert entry.get("needs_in_words", entry.get("predicts")) in printed
        for name, facts in entry["hparams"].items():
            if facts["own"]:
                assert any(f"- {name}=" in line and (facts["searched"] or "") in line for line in printed.splitlines())
    assert main(["list"]) == 0
    assert "one source domain" not in capsys.readouterr().out


@pytest.mark.parametrize("verb", EXPECTED)
def test_every_verb_helps_with_an_example(verb, capsys):
    with pytest.raises(SystemExit) as stopped:
        main([verb, "--help"])
    assert stopped.value.code == 0
    printed = capsys.readouterr().out
    assert "Example" in printed
    assert f"itta {verb}" in printed


@pytest.mark.slow
def test_the_module_is_the_command_and_its_status_is_that_of_the_shell(tmp_path):
    command = [sys.executable, "-m", "itta", "train", str(tmp_path / "nowhere"), "--out", str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("itta: error: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_a_reader_that_has_enough_is_no_mistake():
    command = f"{sys.executable} -m itta list --json | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120)
    assert done.stderr == ""
    assert done.stdout.split() == ["0"]


def test_a_second_command_in_the_same_process_adds_nothing() -> None:
    """Notebooks and tests call `main` many times."""
    main(["list", "backbones"])
    before = {name: dict(verb.__annotations__) for name, verb in TABLE.items()}
    fields_before = dict(TrainSettings.__annotations__)
    main(["list", "backbones"])
    assert {name: verb.__annotations__ for name, verb in TABLE.items()} == before
    assert TrainSettings.__annotations__ == fields_before
