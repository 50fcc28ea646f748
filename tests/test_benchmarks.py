import doctest
import importlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from itta import records
from itta.algorithms import ALGORITHMS
from itta.functional.augment import draw_augmentation
from itta.functional.augment_bytes import augment_bytes
from itta.records import Record
from itta.trial import Trial

ROOT = Path(__file__).parents[1]
TINY = ("--backbone", "small_cnn", "--image-size", "16", "--batch", "4", "--rounds", "1", "--threads", "1")
STEPS = (
    "erm", "consistency", "itta", "itta last", "itta paper", "itta every 5", "itta double backward",
    "itta double backward shared",
)  # fmt: skip
ADAPTS = (
    "source", "itta", "itta channel", "itta last", "itta 2 steps", "itta 3 steps", "itta episodic", "itta+",
    "itta+ bare", "t3a", "lame", "shot", "sar",
)  # fmt: skip
WITH_BATCH_NORM = (*ADAPTS, "tent", "roid", "bn_adapt", "eata")

KINDS = {
    "dann": {"dann generator", "dann discriminator"},
    "cdann": {"cdann generator", "cdann discriminator"},
    "metareg": {"metareg meta", "metareg final"},
}
METHODS = set().union(*(KINDS.get(name, {name}) for name in ALGORITHMS))


@pytest.fixture
def load(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    return lambda name: importlib.import_module(f"benchmarks.{name}")


@pytest.fixture
def run(load, monkeypatch):
    """Run a benchmark's command in this process; the number of threads it sets is put back."""
    threads = torch.get_num_threads()

    def call(name: str, *args: str) -> None:
        module = load(name)
        monkeypatch.setattr(sys, "argv", [name, *args])
        load("timing").main(name, module.Options, module.measure, None)

    yield call
    torch.set_num_threads(threads)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "flags", "expected"),
    [
        ("step_cost", ["--cosine"], {*STEPS, *(f"{s} memory" for s in STEPS), "itta last cosine"}),
        ("step_cost", ["--only", "erm"], {"consistency", "erm", "consistency memory", "erm memory"}),
        ("adapt_cost", ["--slow"], {*(f"{a}{what}" for a in (*ADAPTS, "cotta", "memo") for what in ("", " flops"))}),
        ("methods_cost", ["--domains", "2"], METHODS),
        ("methods_cost", ["--recipe", "quick", "--only", "itta", "--processor-time"], {"erm", "itta"}),
        ("depthwise_cost", ["--backbone", "efficientnet_lite0", "--only", "erm"], {"erm", "erm, convolutions"}),
    ],
)
def test_json_is_one_object_of_ratios(name, flags, expected, run, capfd):
    run(name, *TINY, *flags, "--json")
    printed = capfd.readouterr()
    assert printed.err == ""
    found = json.loads(printed.out)
    assert set(found) == expected
    for entry in found.values():
        assert set(entry) == {"ratio", "spread"}
        assert entry["ratio"] > 0
        assert entry["spread"] >= 0
    base = {"step_cost": "consistency", "adapt_cost": "source"}.get(name, "erm")
    assert found[base] == {"ratio": 1.0, "spread": 0.0}


@pytest.mark.slow
def test_forward_cost_compares_with_onnx_runtime(run, capfd):
    run("forward_cost", *TINY, "--rest", "0", "--json")
    found = json.loads(capfd.readouterr().out)
    case = "small_cnn 16² batch 4"
    jobs = {f"{case} {job}" for job in ("onnxruntime", "network", "source", "itta+")}
    assert set(found) == {*jobs, *(f"{job} to source" for job in jobs)}
    assert found[f"{case} onnxruntime"] == found[f"{case} source to source"] == {"ratio": 1.0, "spread": 0.0}


def test_large_target_finds_every_link(load, tmp_path):
    module = load("large_target")
    found = module.measure(module.Options(images=300, folders=7, directory=tmp_path))
    assert found["predict"]["images"] == found["adapt"]["images"] == 300
    assert 0 < found["predict"]["peak_bytes"] < 1_000_000
    assert 0 < found["adapt"]["bytes_that_stay"] <= found["adapt"]["peak_bytes"] < 300 * (3 * 128**2 + 1000)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_command_prints_json_alone():
    command = [sys.executable, "-m", "benchmarks.methods_cost", *TINY, "--domains", "2", "--only", "irm", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert json.loads(done.stdout).keys() == {"erm", "irm"}


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    for name in ("a/x", "a/y", "b/x", "b/y"):
        (tmp_path / name).mkdir(parents=True)
        for i in range(4):
            Image.fromarray(rng.integers(0, 256, (20, 24, 3), dtype=np.uint8)).save(tmp_path / name / f"{i}.jpg")
    return tmp_path


@pytest.mark.slow
def test_loading_compares_and_tells_how_long_steps_wait(run, folder, capsys):
    run("loading", *TINY, "--data", str(folder), "--steps", "2", "--json")
    found = json.loads(capsys.readouterr().out)
    jobs = {"pillow", "pillow lean", "cache", "1 worker", "2 workers"}
    more = {"cache waiting", "1 worker speed up", "2 workers speed up"}
    assert set(found) == {*jobs, *(f"{job} speed" for job in jobs), *more}
    assert found["pillow"] == found["pillow speed"] == {"ratio": 1.0, "spread": 0.0}
    assert found["cache"]["ratio"] * found["cache speed"]["ratio"] == pytest.approx(1)
    assert 0 <= found["cache waiting"]["ratio"] < 1


def test_loading_needs_images(run):
    with pytest.raises(SystemExit, match="--data FOLDER"):
        run("loading", *TINY)


@pytest.mark.slow
@pytest.mark.parametrize("lean", [False, True])
def test_the_pillow_chain_augments_as_much_as_ours(load, folder, lean):
    """What it is compared with must not be cheaper for doing less."""
    torch.manual_seed(0)
    loading, path = load("loading"), folder / "a/x/0.jpg"
    draw = loading.PythonDraw(0) if lean else loading.TorchDraw()
    images = torch.stack([loading.pillow_image(path, 16, draw) for _ in range(200)])
    assert images.shape == (200, 3, 16, 16)
    assert 0 <= images.min() < images.max() <= 1
    grey = (images[:, 0] == images[:, 1]).all((1, 2)).float().mean()
    assert 0.03 < grey < 0.2
    tiles = torch.from_numpy(np.array(Image.open(path).resize((16, 16)))).permute(2, 0, 1).repeat(200, 1, 1, 1)
    ours = augment_bytes(tiles, draw_augmentation(200, torch.Generator().manual_seed(0)))
    for one, other in ((images.mean((2, 3)), ours.mean((2, 3))), (images.std((2, 3)), ours.std((2, 3)))):
        torch.testing.assert_close(one.mean(0), other.mean(0), atol=0.05, rtol=0)
        torch.testing.assert_close(one.std(0), other.std(0), atol=0.03, rtol=0)


@pytest.mark.slow
def test_table_has_a_row_per_job(run, capsys):
    run("adapt_cost", *TINY)
    printed = capsys.readouterr().out
    for name in ADAPTS:
        assert f" {name} " in printed


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--backbone", "resnet19"), "Choices:"),
        (("--batch", "1"), "batch must be at least 2"),
        (("--only", "ita"), "unknown job 'ita'"),
    ],
)
def test_wrong_settings_are_told_in_words(run, capsys, args, message):
    with pytest.raises(SystemExit) as stopped:
        run("step_cost", *args)
    printed = capsys.readouterr()
    assert message in f"{stopped.value} {printed.out} {printed.err}"


def test_documented_examples(load):
    assert doctest.testmod(load("timing")).failed == 0


@pytest.mark.slow
@pytest.mark.parametrize("order", ["shared", "paper"])
def test_the_yardstick_computes_what_it_is_compared_with(load, order):
    step_cost = load("step_cost")
    options = step_cost.Options(image_size=32, batch=4)
    models = []
    for cls in (step_cost.ITTA, step_cost.DoubleBackward):
        torch.manual_seed(0)
        model = cls(options.task(), step_cost.default(cls.Hparams, update_order=order)).train()
        torch.manual_seed(1)
        step_cost.step(model, step_cost.make_batch(options), seed=0)
        models.append(model)
    exact, plain = models
    torch.testing.assert_close(step_cost.w_gradient(plain), step_cost.w_gradient(exact), rtol=1e-3, atol=1e-6)
    for ours, theirs in zip(exact.main_parameters(), plain.main_parameters()):
        torch.testing.assert_close(theirs.grad, ours.grad, rtol=1e-3, atol=1e-5)


@pytest.mark.slow
def test_memory_counts_what_is_alive_at_once(load):
    peak_memory = load("step_cost").peak_memory

    def one_after_the_other() -> None:
        for _ in range(3):
            torch.zeros(2**18)

    def together() -> None:
        kept = [torch.zeros(2**18) for _ in range(3)]
        assert len(kept) == 3

    assert peak_memory(one_after_the_other) == pytest.approx(2**20, rel=0.01)
    assert peak_memory(together) == pytest.approx(3 * 2**20, rel=0.01)


@pytest.mark.slow
def test_a_sweep_survives_kills(load, tmp_path, monkeypatch):
    kills = load("sweep_kills")
    monkeypatch.setattr(kills, "TABLES", kills.TABLES[:1])  # all of them are compared in the next test
    found = kills.measure(kills.Options(trials=4, kills=2), tmp_path)
    assert found.wrong == []
    assert sorted(found.kills) == ["launcher", "worker"]
    assert found.starts >= 2
    assert found.resumed >= 1


@pytest.mark.slow
def test_kills_are_noticed_if_they_did_harm(load, tmp_path):
    kills = load("sweep_kills")
    for out, accuracy in (("peace", 0.5), ("killed", 0.6)):
        folder = tmp_path / out / "key"
        folder.mkdir(parents=True)
        (folder / "state.json").write_text(json.dumps({"word": "done", "reason": "", "attempts": 2}))
        trial = Trial("toy", "erm", ("a",), ("t",), steps=1)
        measured = {"a": {"out": 1.0}, "t": {"in": accuracy, "out": accuracy}}
        records.append(folder / "records.jsonl", Record(trial, 1, "source", measured))
        for name in ("steps.jsonl", "model.safetensors"):
            (folder / name).write_bytes(b"the same")
    found = kills.Found(trials=1)
    kills.compare(tmp_path / "peace", tmp_path / "killed", found)
    assert found.resumed == 1
    assert found.wrong == ["key/records.jsonl differs", *(f"itta report {' '.join(f)} differs" for f in kills.TABLES)]


def test_the_launchers_time_is_what_its_workers_leave(load):
    watched = load("sweep_speed").Watched(wall=20.0, spans=[(9.0, 15.0), (2.0, 8.5), (15.25, 19.0)], cpu=1.0)
    assert watched.edges == pytest.approx(2 + 1)
    assert watched.between == pytest.approx((0.5 + 0.25) / 2)


@pytest.mark.slow
def test_the_speed_of_a_sweep(load, tmp_path):
    speed = load("sweep_speed")
    found = speed.measure(speed.Options(trials=2, steps=1, backbone="small_cnn", image_size=16), tmp_path)
    assert found.gain == pytest.approx(found.two / found.one)
    assert 0 < found.each < found.alone < found.trial + found.alone < 3600 * 2 / found.one


@pytest.mark.slow
def test_a_report_over_many_records(load, tmp_path):
    scale = load("report_scale")
    held = torch.ones(2**28)  # 1 GiB of this process, which is not the report's
    found = scale.measure(scale.Options(records=250, json=True), tmp_path)
    assert {name.split(",")[0] for name in found} == set(scale.SELECTIONS)
    assert all(c.cpu > 0 and 20 < c.mib < held.nbytes / 2**20 for c in found.values())
    made = [r for p in (tmp_path / "records").glob("*/records.jsonl") for r in records.read(p)]
    assert len(made) == 250
    assert {r.adapter for r in made} == {"source", *scale.ADAPTERS}


@pytest.mark.slow
def test_rates_of_false_alarms(load):
    rates = load("significance_rates")
    options = rates.Options(experiments=1000)
    found = rates.measure(options, 6, 3, rates.EFFECTS["normal"])
    assert rates.acceptable(found)
    assert found.pairs_alarms > 0.1  # the tests on pairs that the report does not use
    assert rates.measure(options, 4, 3, rates.EFFECTS["normal"]).alarms is None
    for draw in rates.EFFECTS.values():
        effects = draw(np.random.default_rng(0), (100_000,))
        assert abs(effects.mean()) < 0.05
        assert effects.std() == pytest.approx(1, abs=0.1)


@pytest.mark.slow
def test_effects_of_deviations(load):
    deviations = load("deviations")
    tiny = deviations.Options(steps=3, batch=4, images=8, backbone="small_cnn", weights="none", image_size=16)
    found = deviations.measure(tiny)
    first, tenth, zero = (found[name] for name in deviations.SCALES)
    assert (first.answers, first.logits, first.f_w) == (0, 0, 0)
    assert 0 < tenth.f_w < 0.5  # Adam removes the scale, up to its eps
    assert zero.f_w == 1  # f_w has stayed at its start
    assert found["Θ by sgd"].logits > 0
    assert found["MEMO, divisor n − 1"].logits == 0  # this network has no batch normalisation


@pytest.mark.slow
def test_verbs_survive_kills(load, photos, tmp_path):
    kills = load("random_kills")
    options = kills.Options(kills=4, steps=5, data=str(photos), target="night", json=True)
    found = kills.measure(options, tmp_path)
    assert found.wrong == []
    assert sum(found.kills.values()) == 4
    assert all(found.compared[verb] >= 1 for verb in ("train", "sweep", "tune", "export"))
    (tmp_path / "model" / "model.safetensors").write_bytes(b"another")
    assert kills.results("train", tmp_path / "model") != kills.results("train", tmp_path / "train-0")
