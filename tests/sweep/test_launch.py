"""itta sweep and itta sweep status, from the command to the table."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from itta import records
from itta.cli import main
from itta.data.dataset import split
from itta.data.folder import load_folder
from itta.run.directory import alone
from itta.run.job import Job
from itta.run.status import read_state, write_state
from itta.sweep.engines.local import Local
from itta.sweep.launch import PATIENCE
from itta.sweep.plan import read_sweep
from itta.sweep.standings import standings
from tests.fixtures.inline_engine import run_inline

FLAGS = (
    "--targets", "night", "--trial-seeds", "1", "--steps", "2", "--eval-every", "1", "--backbone", "small_cnn",
    "--weights", "none", "--image-size", "16", "--regime", "large", "--set", "batch_size=4", "--batch-size", "5",
)  # fmt: skip


def command(photos: Path, out: Path, *flags: str) -> list[str]:
    return ["sweep", str(photos), *FLAGS, "--out", str(out), *flags]


ERM = ("--algorithms", "erm", "--adapters", "source", "t3a", "tent", "--hparams-seeds", "2")


@pytest.fixture(scope="module")
def swept(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("sweep") / "out"
    with pytest.MonkeyPatch.context() as patch:
        run_inline(patch)
        assert main([*command(photos, out, *ERM), "--threads", "1", "--json"]) == 0
    return out


@pytest.fixture
def no_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Local, "start", lambda self, name, job: pytest.fail("a trial was started"))


def test_each_trial_has_a_directory_with_its_records(swept: Path, photos: Path) -> None:
    trials = list(read_sweep(swept).trials())
    assert {p.name for p in swept.iterdir() if p.is_dir()} == {t.key for t in trials}
    for trial in trials:
        found = list(records.read(swept / trial.key / "records.jsonl"))
        assert all(r.trial == trial for r in found)
        assert [r.step for r in found if r.adapter == "source"] == [1, 2]
        (adapted,) = (r for r in found if r.adapter == "t3a")
        assert adapted.stream["batch_size"] == 5
        assert adapted.accuracy["night"].keys() == {"in", "out", "all"}
        cut = split(load_folder(photos, image_size=16), 0)["night"]
        whole = adapted.accuracy["night"]["in"] * len(cut.train) + adapted.accuracy["night"]["out"] * len(cut.held_out)
        assert adapted.accuracy["night"]["all"] == pytest.approx(whole / 12)


def test_the_search_draws_domainbeds_values(swept: Path) -> None:
    """Golden values of hparams seed 1, trial seed 0; what is set is not drawn."""
    drawn = {r.trial.hparams_seed: r.hparams for p in swept.glob("*/records.jsonl") for r in records.read(p)}
    assert (drawn[0]["lr"], drawn[0]["weight_decay"]) == (5e-5, 0.0)
    assert (drawn[1]["lr"], drawn[1]["weight_decay"]) == (2.7028930742148706e-05, 0.00044832883881609976)
    assert {h["batch_size"] for h in drawn.values()} == {4}


def test_the_report_reads_it(swept: Path, run_itta) -> None:
    cells = json.loads(run_itta("report", swept, "--json"))["cells"]
    assert {c["row"]: c["n"] for c in cells} == {"erm": 1, "erm + t3a": 1}
    assert "checkpoint by training-domain" in run_itta("report", swept)


def test_the_same_command_does_nothing_again(swept: Path, photos: Path, run_itta, no_start) -> None:
    before = {p: p.read_bytes() for p in swept.rglob("*") if p.is_file()}
    found = json.loads(run_itta(*command(photos, swept, *ERM), "--json"))
    assert (found["done"], found["waiting"]) == (2, 0)
    assert {p: p.read_bytes() for p in swept.rglob("*") if p.is_file()} == before


def test_a_trial_that_ran_elsewhere_is_not_run_again(
    swept: Path, photos: Path, tmp_path: Path, run_itta, no_start
) -> None:
    run_itta("records", "join", swept, "--out", tmp_path / "all.jsonl")
    asked = ("--algorithms", "erm", "--hparams-seeds", "2", "--elsewhere", str(tmp_path / "all.jsonl"))

    def count(*more: str) -> tuple[int, int]:
        found = json.loads(run_itta(*command(photos, tmp_path / "new", *asked), *more, "--dry-run", "--json"))
        return found["done"], found["waiting"]

    assert count() == (2, 0)
    assert count("--adapters", "source", "t3a") == (2, 0)
    assert count("--adapters", "t3a", "lame") == (0, 2)  # of lame there is no record
    assert count("--adapters", "t3a", "--adapter-set", "t3a.supports=5") == (0, 2)
    assert count("--adapters", "t3a", "--orders", "sorted") == (0, 2)
    assert count("--adapters", "t3a", "--batch-size", "6") == (0, 2)
    assert count("--steps", "3") == (0, 2)  # other trials
    assert count("--hparams-seeds", "3") == (2, 1)
    again = run_itta(*command(photos, tmp_path / "new", *asked), "--adapters", "t3a")
    assert "all.jsonl" in again  # the next step is a report over both
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["sweep.json"]
    assert json.loads(run_itta("sweep", "status", tmp_path / "new", "--json"))["done"] == 2


def test_records_that_are_cut_short_are_not_done(swept: Path, photos: Path, tmp_path: Path, run_itta) -> None:
    lines = [r for p in swept.glob("*/records.jsonl") for r in records.read(p) if r.step == 1]
    records.write_all(tmp_path / "part.jsonl", lines)
    asked = ("--algorithms", "erm", "--hparams-seeds", "2", "--elsewhere", str(tmp_path / "part.jsonl"), "--dry-run")
    assert json.loads(run_itta(*command(photos, tmp_path / "new", *asked), "--json"))["waiting"] == 2


def test_elsewhere_must_hold_records(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command(photos, tmp_path / "new", *ERM), "--elsewhere", str(tmp_path / "nowhere"), "--dry-run"]) == 2
    assert "no records in" in capsys.readouterr().err


def test_a_dry_run_counts_and_reckons_and_does_nothing(
    swept: Path, photos: Path, tmp_path: Path, run_itta, no_start
) -> None:
    new = run_itta(*command(photos, tmp_path / "new", *ERM), "--dry-run")
    assert "2 trials" in new
    assert "unknown until a trial is done" in new
    assert not (tmp_path / "new").exists()
    before = (swept / "sweep.json").read_bytes()
    more = (*ERM[:-1], "5", "--adapters", "t3a", "lame", "--slots", "1", "--dry-run", "--json")
    found = json.loads(run_itta(*command(photos, swept, *more)))
    assert (found["trials"], found["done"], found["waiting"]) == (5, 0, 5)  # lame is new for those that were done
    fewer = json.loads(run_itta(*command(photos, swept, *ERM[:-1], "5", "--slots", "1", "--dry-run", "--json")))
    assert (fewer["done"], fewer["waiting"]) == (2, 3)
    each = [read_state(p) for p in swept.iterdir() if p.is_dir()]
    label = next(k for k in each[0].adapted if k.startswith("t3a"))
    assert fewer["seconds_left"] == pytest.approx(
        3 / 2 * sum(s.train_seconds + sum(v for v in s.adapted.values() if isinstance(v, float)) for s in each),
        rel=1e-6,
    )
    assert label.startswith("t3a at=best batch=5")
    assert (swept / "sweep.json").read_bytes() == before


def test_status(swept: Path, run_itta) -> None:
    found = json.loads(run_itta("sweep", "status", swept, "--json"))
    assert found == json.loads(run_itta("sweep-status", swept, "--watch", "--json"))  # nothing left to watch
    assert (found["trials"], found["done"], found["seconds_left"]) == (2, 2, 0)
    ((why, n),) = found["cannot"].items()
    assert n == 2
    assert "erm, tent: tent adapts batch normalisation" in why
    printed = run_itta("sweep", "status", swept)
    assert "2 trials" in printed
    assert "cannot   erm, tent" in printed


def test_status_of_one_that_is_being_run(swept: Path, tmp_path: Path, run_itta) -> None:
    sweep = read_sweep(swept)
    (tmp_path / "sweep.json").write_bytes((swept / "sweep.json").read_bytes())
    first, second = sweep.trials()
    for trial, changes in ((first, {"word": "running", "step": 1, "doing": "training", "pid": os.getpid()}),
                           (second, {"word": "failed", "reason": "loss is not finite"})):  # fmt: skip
        (tmp_path / trial.key).mkdir()
        state = read_state(swept / trial.key)
        assert state
        write_state(tmp_path / trial.key, type(state)(**{**vars(state), **changes}))
    printed = run_itta("sweep", "status", tmp_path)
    assert f"running  erm, dawn+noon→night, hparams 0, trial 0 ({first.key[:8]}): step 1 of 2, training" in printed
    assert f"failed   erm, dawn+noon→night, hparams 1, trial 0 ({second.key[:8]}): loss is not finite" in printed
    assert "left     " in printed


def test_a_watch_ends_when_everything_is_done(swept: Path, tmp_path: Path, run_itta, monkeypatch) -> None:
    (tmp_path / "sweep.json").write_bytes((swept / "sweep.json").read_bytes())
    waits: list[float] = []

    def finish_one(seconds: float) -> None:
        trial = list(read_sweep(swept).trials())[len(waits)]
        waits.append(seconds)
        (tmp_path / trial.key).symlink_to(swept / trial.key)

    monkeypatch.setattr(time, "sleep", finish_one)
    printed = run_itta("sweep", "status", tmp_path, "--watch", "--every", "7", "--json")
    assert waits == [7, 7]
    assert [json.loads(line)["done"] for line in printed.splitlines()] == [0, 1, 2]


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--algorithms", "magic"], ["'magic'", "erm"]),
        (["--adapters", "magic"], ["'magic'", "t3a"]),
        (["--backbone", "resnet19"], ["Did you mean 'resnet18'"]),
        (["--targets", "nigth"], ["Did you mean 'night'"]),
        (["--set", "colour=red"], ["'colour'"]),
        (["--adapters", "t3a", "--adapter-set", "t3a.colour=red"], ["'colour'"]),
        (["--adapters", "t3a", "--adapter-set", "tent.lr=1"], ["'tent'", "t3a"]),
        (["--adapter-set", "lr=1"], ["ADAPTER.NAME=VALUE", "'lr=1'"]),
        (["--hparams-seeds", "0"], ["--hparams-seeds must be at least 1"]),
        (["--trial-seeds", "0"], ["--trial-seeds must be at least 1"]),
        (["--single-source", "--pairs"], ["--pairs or --single-source"]),
    ],
)
@pytest.mark.parametrize("dry", [(), ("--dry-run",)])
def test_mistakes_are_told_before_anything_starts(flags, told, dry, photos, tmp_path, capsys, no_start) -> None:
    capsys.readouterr()
    assert main([*command(photos, tmp_path / "out"), *flags, *dry]) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("itta: error: ")
    assert printed.err.count("\n") == 1
    for word in told:
        assert word in printed.err
    assert not (tmp_path / "out").exists()


def test_no_data_and_no_sweep(tmp_path: Path, capsys) -> None:
    for words, told in (
        (["sweep", "--out", str(tmp_path)], "no data"),
        (["sweep", str(tmp_path / "nowhere"), "--out", str(tmp_path)], "nowhere"),
        (["sweep", "status", str(tmp_path)], "holds no sweep"),
    ):
        assert main(words) == 2
        assert told in capsys.readouterr().err


@pytest.mark.slow
def test_a_trial_that_fails_says_why(make_photos_without, tmp_path: Path, capsys) -> None:
    photos = make_photos_without("dawn", keep=2)
    assert (
        main([*command(photos, tmp_path / "out", "--algorithms", "erm"), "--hparams-seeds", "1", "--slots", "1"]) == 2
    )
    printed = capsys.readouterr()
    assert "1 of 1 trials failed" in printed.err
    assert "'dawn' has 4 images" in printed.out
    assert main(["sweep", "status", str(tmp_path / "out"), "--json"]) == 0
    (reason,) = json.loads(capsys.readouterr().out)["reasons"]
    assert "'dawn' has 4 images" in reason["reason"]


@pytest.mark.slow
def test_a_trial_that_another_command_is_at_is_left_to_it(
    swept: Path, photos: Path, tmp_path: Path, capsys, monkeypatch
) -> None:
    monkeypatch.setitem(PATIENCE, "local", 0.1)
    out = tmp_path / "out"
    shutil.copytree(swept, out)
    trial = next(read_sweep(out).trials())
    state = read_state(out / trial.key)
    assert state
    with alone(out / trial.key):
        write_state(out / trial.key, replace(state, word="running", pid=os.getpid()))
        assert main([*command(photos, out, *ERM), "--slots", "1"]) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("itta: error: another command is running 1 of 1 trials; the others are done.")
    assert f"itta sweep status {out} --watch" in printed.err
    assert "failed   " not in printed.out
    assert main([*command(photos, out, *ERM), "--slots", "1"]) == 0  # it is ours now


@pytest.mark.slow
def test_workers_end_with_their_launcher(photos: Path, slow: str, tmp_path: Path, monkeypatch) -> None:
    """Nobody would hear them, and the same command would have to wait for them."""
    monkeypatch.setenv("ITTA_TEST_SECONDS", "60")  # a step, after which it would see that nobody listens
    flags = ("--algorithms", slow, "--hparams-seeds", "1", "--slots", "1")
    process = subprocess.Popen([sys.executable, "-m", "itta", *command(photos, tmp_path / "out", *flags)])
    deadline = time.monotonic() + 120
    while not (found := list((tmp_path / "out").glob("*/state.json"))):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.kill()
    process.wait()
    with alone(found[0].parent, patience=20):  # the system lets go of a lock when its process is no more
        assert not (found[0].parent / "records.jsonl").exists()


@pytest.mark.slow
def test_an_interrupted_sweep_leaves_trials_that_wait(photos: Path, slow: str, tmp_path: Path) -> None:
    flags = ("--algorithms", slow, "--hparams-seeds", "1", "--steps", "200", "--slots", "1")
    words = command(photos, tmp_path / "out", *flags)
    process = subprocess.Popen(
        [sys.executable, "-m", "itta", *words],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore it
    )
    deadline = time.monotonic() + 120
    while not list((tmp_path / "out").glob("*/checkpoint.safetensors")):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    _, printed = process.communicate(timeout=60)
    assert process.returncode == 130, printed
    assert "the same command goes on" in printed
    assert "Traceback" not in printed
    (folder,) = (p for p in (tmp_path / "out").iterdir() if p.is_dir())
    assert not (folder / "model.json").exists()
    state = read_state(folder)
    assert state
    assert state.word == "running"  # as it last said
    (standing,) = standings(read_sweep(tmp_path / "out"), tmp_path / "out")
    assert standing.word == "waiting"  # for nobody is there any more


@pytest.mark.parametrize("flags", [(), ("--stand-ins",)])
def test_a_sweep_measures_stand_ins_if_it_is_asked_to(
    flags: tuple[str, ...], photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []

    def note(jobs: dict[str, Job], *rest: object) -> dict[str, str]:
        asked.extend(job.stand_ins for job in jobs.values())
        return {}

    monkeypatch.setattr("itta.sweep.launch.run_jobs", note)
    main([*command(photos, tmp_path / "out", *ERM), "--yes", *flags])
    assert asked == [bool(flags)] * 2


@pytest.mark.parametrize("flags", [(), ("--keep-checkpoints",)])
def test_workers_get_whole_paths_and_the_wish_to_keep_checkpoints(
    flags: tuple[str, ...], photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker on another node has neither the folder nor the environment of the command."""
    made: list[Job] = []
    monkeypatch.setattr("itta.sweep.launch.run_jobs", lambda jobs, *more: made.extend(jobs.values()) or {})
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ITTA_DATA", "datasets")
    rows = [f"{f.parts[-3]},{f.parts[-2]},{f}" for f in sorted(photos.rglob("*.png"))]
    Path("list.csv").write_text("\n".join(["domain,class,file", *rows]) + "\n")
    words = ["sweep", "list.csv", "emoji", *FLAGS[2:], "--algorithms", "erm", "--out", "out", "--yes", "--json", *flags]
    assert main(words) == 0
    assert {job.trial.dataset for job in made} == {str(tmp_path / "list.csv"), "emoji"}
    for job in made:
        assert job.out.is_absolute()
        assert job.access.data_root == tmp_path / "datasets"
        assert job.keep_checkpoint == bool(flags)


def test_a_finished_trial_keeps_no_checkpoint(swept: Path) -> None:
    assert [*swept.rglob("model.safetensors")]
    assert [*swept.rglob("checkpoint.safetensors")] == []
