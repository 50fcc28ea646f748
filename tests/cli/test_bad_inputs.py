"""Bad inputs to the verbs: each ends in one line with the file or the value and the cure, and changes nothing else."""

import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import load_file, save_file

import itta
from itta.cli import main
from itta.errors import InputError
from itta.records import write_all
from itta.report.plots import plot_stream
from itta.store.model import save_model
from tests.fixtures.made_up import made_up

TINY = ("--backbone", "small_cnn", "--weights", "none", "--image-size", "16", "--steps", "2", "--algorithm", "erm")


def edit(name: str, **changes: Any) -> Callable[[Path], None]:
    """Change fields of a JSON file of a model."""

    def harm(model: Path) -> None:
        values = json.loads((model / name).read_text()) if (model / name).is_file() else {}
        (model / name).write_text(json.dumps(values | changes))

    return harm


def edit_hparams(**changes: Any) -> Callable[[Path], None]:
    def harm(model: Path) -> None:
        values = json.loads((model / "model.json").read_text())
        values["hparams"] |= changes
        (model / "model.json").write_text(json.dumps(values))

    return harm


def raw(name: str, data: bytes) -> Callable[[Path], object]:
    return lambda model: (model / name).write_bytes(data)


def as_pipe(name: str) -> Callable[[Path], None]:
    """Put a pipe in the place of a file: nobody writes to it, so reading it would never end."""

    def harm(model: Path) -> None:
        (model / name).unlink(missing_ok=True)
        os.mkfifo(model / name)

    return harm


def flip(model: Path) -> None:
    """Change one bit of the weights, where no header is."""
    data = bytearray((model / "model.safetensors").read_bytes())
    data[-100] ^= 1
    (model / "model.safetensors").write_bytes(data)


def settings_with(**changes: Any) -> Callable[[Path], None]:
    return edit("adapter.json", chosen={"adapter": "itta", "settings": changes}, gains={}, plain={})


def chosen(adapter: Any) -> Callable[[Path], None]:
    return edit("adapter.json", chosen={"adapter": adapter, "settings": {}}, gains={}, plain={})


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    **{f"image_size {v!r}": (edit("model.json", image_size=v), "image_size") for v in (0, -1, 10**6, "32", None, 1.5)},
    "ten million classes": (edit("model.json", classes=["c"] * 10**6), "classes"),
    "more classes than weights": (edit("model.json", classes=[str(i) for i in range(90_000)]), "does not fit"),
    "no classes": (edit("model.json", classes=[]), "classes"),
    "the same class twice": (edit("model.json", classes=["down", "down"]), "same name"),
    "a class that is a number": (edit("model.json", classes=["across", 3]), "classes"),
    "std 0": (edit("model.json", normalisation={"mean": [0, 0, 0], "std": [1, 1, 0]}), "normalisation.std"),
    "two colours": (edit("model.json", normalisation={"mean": [0, 0], "std": [1, 1]}), "three colours"),
    "text as mean": (edit("model.json", normalisation={"mean": "abc", "std": [1, 1, 1]}), "normalisation.mean"),
    "lr NaN": (raw("model.json", b'{"format": "itta-model", "format_version": 1, "hparams": {"lr": NaN}}'), "not JSON"),
    "lr text": (edit_hparams(lr="nan"), "lr must be a finite number"),
    "lr negative": (edit_hparams(lr=-1), "lr must be a finite number"),
    "a million layers": (edit_hparams(fw_depth=10**6), "fw_depth"),
    "a list as a setting": (edit_hparams(align_blocks=[1]), "align_blocks"),
    "deep nesting": (raw("model.json", b'{"a":' * 100_000), "nested"),
    "forty deep": (edit("model.json", about=json.loads("[" * 40 + "]" * 40)), "nested"),
    "a lone surrogate": (raw("model.json", b'{"format": "\\ud800"}'), "not JSON"),
    "a large file": (raw("model.json", b" " * (17 * 2**20)), "larger than 16 MB"),
    "an unknown setting": (
        edit_hparams(colour=1),
        "model.json is damaged or not ours (unknown hyper-parameter 'colour'",
    ),
    "an unknown algorithm": (
        edit("model.json", algorithm="zzz"),
        "model.json is damaged or not ours (unknown algorithm",
    ),
    "no weights": (lambda model: (model / "model.safetensors").unlink(), "there is no file"),
    "weights cut short": (raw("model.safetensors", b"junk"), "Copy it again, or delete it"),
    "weights that are a pipe": (as_pipe("model.safetensors"), "model.safetensors is a device or a pipe"),
    "an unknown field": (edit("model.json", shell="rm"), "unknown field `shell`"),
    "a checksum that is none": (edit("model.json", weights_sha256="abc"), "weights_sha256"),
    "a flipped bit": (flip, "checksum"),
    "own algorithm": (edit("model.json", algorithm="payload:Class"), "never makes itta import code"),
    "own backbone": (edit("model.json", backbone="payload:Class"), "never makes itta import code"),
    "a hub's backbone": (edit("model.json", backbone="timm:hf-hub:someone/model"), "never makes itta import code"),
    "own adapter": (chosen("payload:Class"), "never makes itta import code"),
    "an adapter that is a number": (chosen(3), "adapter"),
    "an adapter's lr": (settings_with(lr=-1), "adapter.json is damaged or not ours (lr must be"),
    "an adapter's unknown setting": (settings_with(colour=1), "adapter.json is damaged or not ours (unknown hyper"),
    "an adapter's guard": (settings_with(guard=True), "'guard'"),
    "an adapter's method": (settings_with(method="tent"), "'method'"),
    "adapter.json is a list": (raw("adapter.json", b"[]"), "adapter.json"),
    "adapter.json is no text": (raw("adapter.json", b"\xff\xfe"), "adapter.json"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_harmful_model_is_refused(name, models, drawn, tmp_path, fails, tree, monkeypatch):
    """A module of the name that the file gives lies where Python would find it."""
    (tmp_path / "payload.py").write_text("raise SystemExit('the payload ran')")
    monkeypatch.syspath_prepend(tmp_path)
    harm, told = DAMAGE[name]
    model = Path(shutil.copytree(models["itta"], tmp_path / "model"))
    harm(model)
    before = tree(model)
    said = fails("predict", model, drawn / "night")
    assert told in said
    assert "payload" not in sys.modules
    assert tree(model) == before


@pytest.mark.parametrize("field", ["algorithm", "backbone"])
def test_tune_imports_nothing_that_a_model_names(field, models, tmp_path, fails, monkeypatch):
    (tmp_path / "payload.py").write_text("raise SystemExit('the payload ran')")
    monkeypatch.syspath_prepend(tmp_path)
    model = Path(shutil.copytree(models["itta"], tmp_path / "model"))
    values = json.loads((model / "model.json").read_text())
    values["about"]["trial"][field] = "payload:Class"
    (model / "model.json").write_text(json.dumps(values))
    assert "never makes itta import code" in fails("tune", model)
    assert "payload" not in sys.modules


def test_a_model_without_a_checksum_still_loads(models, drawn, tmp_path, run_itta):
    model = Path(shutil.copytree(models["itta"], tmp_path / "model"))
    values = json.loads((model / "model.json").read_text())
    del values["weights_sha256"]
    (model / "model.json").write_text(json.dumps(values))
    assert run_itta("predict", model, drawn / "night").count("\n") == 13


FLAGS: dict[str, tuple[list[str], str]] = {
    "lr nan": (["--set", "lr=nan"], "lr must be a finite number"),
    "lr inf": (["--set", "lr=inf"], "lr must be a finite number"),
    "lr -1": (["--set", "lr=-1"], "lr must be a finite number"),
    "lr 1e38": (["--recipe", "none", "--set", "lr=1e38", "--steps", "1"], "lower the learning rate"),
    "no module": (["--algorithm", ":x"], "package.module:Class"),
    "a relative module": (["--algorithm", ".x:y"], "package.module:Class"),
    "no class": (["--algorithm", "x:"], "package.module:Class"),
    "threads": (["--threads", "100000"], "--threads must be at most"),
    "negative threads": (["--threads", "-1"], "--threads must be at least 0"),
    "a vast seed": (["--seed", str(10**20)], "--seed must be at most"),
    "a vast negative seed": (["--hparams-seed", str(-(10**20))], "--hparams-seed must be at least"),
    "a vast image": (["--image-size", "100000"], "--image-size must be at most 4096"),
}


@pytest.mark.parametrize("name", FLAGS)
def test_values_that_no_training_can_have(name, drawn, tmp_path, fails):
    flags, told = FLAGS[name]
    assert told in fails("train", drawn, "--target", "night", *TINY, "--out", tmp_path / "run", *flags)
    assert not (tmp_path / "run" / "model.json").exists()


@pytest.mark.parametrize("value", ["nan", "inf", "0", "-1"])
def test_a_concentration_that_is_none(value, models, drawn, fails):
    said = fails("adapt", models["itta"], drawn / "night", "--order", "dirichlet", "--concentration", value)
    assert "--concentration must be a number above 0" in said


def test_a_figure_of_no_known_kind(models, drawn, tmp_path, fails):
    assert "end it in .png, .pdf, .svg" in fails("cam", models["itta"], drawn / "night", "--out", tmp_path / "c.xyz")


@pytest.mark.slow
def test_answers_that_are_not_finite_are_refused(models, drawn, tmp_path, fails):
    """A model of an earlier version may have such weights; today's are checked before they are saved."""
    model = Path(shutil.copytree(models["erm"], tmp_path / "model"))
    tensors = load_file(model / "model.safetensors")
    tensors["model.head.weight"] *= float("nan")
    save_file(tensors, model / "model.safetensors")
    edit("model.json", weights_sha256="")(model)
    out = tmp_path / "p.csv"
    assert "not finite" in fails("predict", model, drawn / "night", "--adapter", "source", "--out", out)
    assert "nan" not in out.read_text()
    assert "not finite" in fails("export", model, "--torch", tmp_path / "m.pt2")
    assert not (tmp_path / "m.pt2").exists()
    with pytest.raises(InputError, match=r"weights are not finite.*head\.weight"):
        save_model(tmp_path / "again", itta.load(model), "small_cnn", {})
    assert not (tmp_path / "again").exists()


def device(path: Path) -> Path:
    return Path("/dev/null")


def link(path: Path) -> Path:
    (path / "target.csv").write_text("precious")
    (path / "link.csv").symlink_to(path / "target.csv")
    return path / "link.csv"


def fifo(path: Path) -> Path:
    os.mkfifo(path / "fifo")
    return path / "fifo"


def photo(path: Path) -> Path:
    Image.new("RGB", (8, 8)).save(path / "photo.jpg")
    return path / "photo.jpg"


def own_picture(path: Path) -> Path:
    Image.new("RGB", (8, 8)).save(path / "photo.png")
    return path / "photo.png"


@pytest.mark.parametrize("place", [device, link, fifo, photo, own_picture])
@pytest.mark.parametrize("verb", ["predict", "cam", "--onnx", "--torch", "report"])
def test_output_never_replaces_a_device_a_link_or_an_image(place, verb, models, drawn, tmp_path, fails):
    out = place(tmp_path)
    before = out.read_bytes() if out.is_file() else b""
    words = {
        "predict": ["predict", models["erm"], drawn / "night", "--adapter", "source", "--out", out],
        "cam": ["cam", models["erm"], drawn / "night", "--losses", "main", "entropy", "--out", out],
        "report": ["report", models["erm"], "--out", out],
    }.get(verb, ["export", models["erm"], verb, out])
    said = fails(*words)
    assert str(out) in said
    assert any(word in said for word in ("is not replaced", "not a file", "end it in"))
    assert os.path.islink(out) == (place is link)
    assert (out.read_bytes() if out.is_file() else b"") == before


def test_an_input_is_never_the_output(models, drawn, tmp_path, fails):
    manifest = tmp_path / "list.csv"
    manifest.write_text("domain,file\n" + "".join(f"night,{p}\n" for p in (drawn / "night").rglob("*.png")))
    before = manifest.read_text()
    said = fails("predict", models["erm"], manifest, "--adapter", "source", "--out", manifest)
    assert "is an input of this command" in said
    assert manifest.read_text() == before
    run = Path(shutil.copytree(models["erm"], tmp_path / "run"))
    assert "is an input" in fails("report", run, "--out", run / "records.jsonl")
    description = (run / "model.json").read_text()
    for name in ("model.json", "records.jsonl"):
        assert "is an input" in fails("predict", run, drawn / "night", "--adapter", "source", "--out", run / name)
    assert (run / "model.json").read_text() == description


@pytest.mark.parametrize("verb", ["train", "adapt", "check", "inspect", "sweep"])
@pytest.mark.parametrize("place", [device, photo])
def test_output_in_the_place_of_a_directory(place, verb, models, drawn, tmp_path, fails):
    out = place(tmp_path)
    words = {
        "train": [drawn, "--target", "night", *TINY],
        "sweep": [drawn, "--algorithms", "erm", "--backbone", "small_cnn", "--weights", "none"],
        "inspect": [models["itta"]],
    }.get(verb, [models["itta"], drawn / "night"])
    said = fails(verb, *words, "--out", out)
    assert f"{out} is no directory" in said
    assert "choose another --out" in said


def test_pipes_are_not_read(models, drawn, tmp_path, fails, capsys):
    os.mkfifo(tmp_path / "x.png")
    assert main(["predict", str(models["erm"]), str(tmp_path / "x.png"), "--adapter", "source"]) == 2
    assert "x.png is a device or a pipe" in capsys.readouterr().out  # in the row of the image
    os.mkfifo(tmp_path / "records.jsonl")
    assert "records.jsonl is a device or a pipe" in fails("report", tmp_path)


def test_a_stream_has_a_seed_that_can_be_read_again(models, drawn, fails):
    assert "--seed must be at most" in fails("adapt", models["erm"], drawn / "night", "--seed", str(10**20))


def test_a_domain_cannot_lead_out_of_the_model(drawn, tmp_path, tree, run_itta):
    rows = []
    for domain, name in (("dawn", "../../x"), ("noon", "/abs"), ("night", "night")):
        rows += [f"{name},{p.parent.name},{p}" for p in sorted((drawn / domain).rglob("*.png"))]
    manifest = tmp_path / "in" / "list.csv"
    manifest.parent.mkdir()
    manifest.write_text("\n".join(["domain,class,file", *rows]) + "\n")
    model = tmp_path / "deep" / "run"
    flags = ("--no-page", "--set", "batch_size=4")
    run_itta("train", manifest, "--target", "night", *TINY, "--out", model, *flags)
    before = {p for p in tmp_path.rglob("*") if model not in p.parents}
    run_itta("tune", model, "--adapter", "t3a", "--json")
    assert {p for p in tmp_path.rglob("*") if model not in p.parents} == before
    assert sorted(p.name for p in (model / "tune").iterdir()) == ["%2E.%2F..%2Fx", "%2Fabs"]


def test_weights_have_the_permissions_of_the_umask(models):
    modes = {(models["erm"] / name).stat().st_mode & 0o777 for name in ("model.safetensors", "model.json")}
    umask = os.umask(0)
    os.umask(umask)
    assert modes == {0o666 & ~umask}


HOSTILE_NAMES = [
    "=cmd|calc.png",
    "+1.png",
    "@x.png",
    "a\x1b[2Jb.png",
    "[bold]x[",
    "caf\udce9.png",
    "n\nl.png",
]


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_names_of_files_are_text_everywhere(name, models, drawn, tmp_path, run_itta, capsys):
    folder = tmp_path / "target" / "across"
    folder.mkdir(parents=True)
    os.chdir(tmp_path)
    name = name if name.endswith(".png") else f"{name}/b].png".replace("/", "")
    source = drawn / "night" / "across" / "0.png"
    for copy in (name, "other.png"):
        shutil.copy(source, os.path.join(folder, copy))
    os.chdir(folder)
    printed = run_itta("predict", models["erm"], name, "--adapter", "source")
    row = printed.splitlines()[1]
    assert printed.isprintable() or "\x1b" not in printed
    assert len(printed.splitlines()) == 2
    assert not row.startswith(("=", "+", "-", "@", '"='))
    assert json.loads(run_itta("predict", models["erm"], name, "--adapter", "source", "--format", "jsonl"))["label"]
    run_itta("adapt", models["erm"], tmp_path / "target", "--adapter", "t3a", "--out", tmp_path / "out")
    assert len((tmp_path / "out" / "predictions.csv").read_text(encoding="utf-8").splitlines()) == 3


def test_names_of_domains_are_text_on_the_screen(drawn, tmp_path, capsys):
    rows = ["domain,class,file"]
    for domain, name in (("dawn", "[/b]"), ("noon", "[bold]x"), ("night", "n\x1b[2J")):
        rows += [f"{name},{p.parent.name},{p}" for p in sorted((drawn / domain).rglob("*.png"))]
    (tmp_path / "list.csv").write_text("\n".join(rows))
    command = [
        "train",
        str(tmp_path / "list.csv"),
        "--target",
        "n\x1b[2J",
        *TINY,
        "--out",
        str(tmp_path / "run"),
        "--no-page",
    ]
    assert main([*command, "--set", "batch_size=4"]) == 0
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    assert all(name in printed for name in ("[/b]", "[bold]x", "n\\x1b[2J"))


@pytest.mark.parametrize("format", ["markdown", "latex", "html", "csv"])
def test_names_of_domains_are_text_in_every_table(format, tmp_path, run_itta):
    found = made_up("erm", target="n\x1b[2J", sources=("a",))
    write_all(tmp_path / "records.jsonl", found)
    printed = run_itta("report", tmp_path, "--format", format)
    assert "\x1b" not in printed
    assert "x1b" in printed


def test_a_figure_may_have_a_name_that_its_font_lacks(tmp_path, recwarn):
    plot_stream(tmp_path / "s.png", {"source": [np.ones(4)]}, 2, "\u4e2d\u6587 \x1b[2J")
    assert (tmp_path / "s.png").is_file()
    assert [str(w.message) for w in recwarn if "Glyph" in str(w.message)] == []


def test_a_vast_name_is_refused(drawn, tmp_path, fails):
    rows = [f"{p.parts[-3]},{p.parts[-2] * 1000},{p}" for p in sorted(drawn.rglob("*.png"))]
    (tmp_path / "list.csv").write_text("\n".join(["domain,class,file", *rows]))
    said = fails("train", tmp_path / "list.csv", "--target", "night", *TINY, "--out", tmp_path / "run")
    assert "characters, and 4,096 are allowed: shorten it" in said


@pytest.mark.parametrize(("flag", "value"), [("--engine", "zz"), ("--gpus", "-1"), ("--gpus", "nan")])
def test_a_dry_run_refuses_what_a_sweep_refuses(flag, value, drawn, tmp_path, fails):
    words = ["sweep", drawn, "--algorithms", "erm", "--out", tmp_path / "sweep", "--dry-run", flag, value]
    assert value in fails(*words)


def test_a_class_whose_name_is_not_utf8_is_refused(photos, tmp_path, fails):
    for domain in ("dawn", "noon", "night"):
        os.rename(photos / domain / "down", os.fsencode(photos / domain) + b"/caf\xe9")
    said = fails("train", photos, "--target", "night", *TINY, "--out", tmp_path / "run")
    assert "is not UTF-8: rename the folder" in said


@contextmanager
def as_nobody() -> Iterator[None]:
    """Give up root's right to read everything, if we have it."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def shared_place(tmp_path_factory) -> Iterator[Path]:
    """A folder that every user can reach, unlike pytest's own."""
    place = Path("/tmp" if os.geteuid() == 0 else tmp_path_factory.mktemp("shared")) / f"itta-test-{os.getpid()}"
    place.mkdir()
    place.chmod(0o777)
    yield place
    shutil.rmtree(place)


@pytest.mark.parametrize("verb", ["predict", "train", "adapt", "check", "report"])
def test_a_folder_that_cannot_be_read_is_reported(verb, models, drawn, shared_place, fails, monkeypatch):
    monkeypatch.setenv("ITTA_CACHE", "off")
    root, model = shared_place / "photos", shared_place / "model"
    shutil.copytree(drawn, root)
    shutil.copytree(models["erm"], model)
    for folder in (root, model):
        folder.chmod(0o755)  # pytest's folders are for their owner only
    closed = {"report": model / "best-of"}.get(verb, root / "night" / "down")
    closed.mkdir(exist_ok=True)
    closed.chmod(0)
    words = {
        "predict": ["predict", model, root / "night", "--adapter", "source"],
        "train": ["train", root, "--target", "night", *TINY, "--out", shared_place / "run"],
        "adapt": ["adapt", model, root / "night", "--adapter", "t3a"],
        "check": ["data", "check", root],
        "report": ["report", model],
    }[verb]
    try:
        with as_nobody():
            said = fails(*words)
    finally:
        closed.chmod(0o755)
    assert f"cannot read the folder {closed}" in said
    assert "permissions" in said


def warned(capsys) -> list[str]:
    return [line for line in capsys.readouterr().err.splitlines() if line.startswith("itta: warning: ")]


def test_suspicious_data_are_a_warning(photos, tmp_path, capsys):
    shutil.copy(photos / "dawn" / "across" / "0.png", photos / "dawn" / "down" / "copy.png")
    pixels = np.full((8, 8), np.nan, dtype=np.float32)
    Image.fromarray(pixels).save(photos / "noon" / "down" / "nan.tif")
    command = ["train", str(photos), *TINY, "--no-page", "--set", "batch_size=4", "--out"]
    assert main([*command, str(tmp_path / "run")]) == 0
    told = warned(capsys)
    assert any("in two classes" in line and "across/0.png" in line and "down/copy.png" in line for line in told)
    assert any("nan.tif" in line and "NaN" in line for line in told)
    for domain in ("noon", "night"):
        shutil.rmtree(photos / domain)
    assert main([*command, str(tmp_path / "one")]) == 0
    assert any("one domain only, 'dawn'" in line for line in warned(capsys))


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["train", "--torch", "--onnx"])
def test_a_full_disk_is_one_line_and_leaves_nothing_half_written(verb, models, drawn, tmp_path):
    """A limit on the size of files stands for the disk: the system refuses the same writes."""
    words = ["export", str(models["erm"]), verb, str(tmp_path / "out" / "m")]
    if verb == "train":
        words = ["train", str(drawn), "--target", "night", *TINY, "--no-page", "--out", str(tmp_path / "out")]
    (tmp_path / "out").mkdir()
    code = "import sys; from itta.cli import main; sys.exit(main(sys.argv[1:]))"

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))

    done = subprocess.run(
        [sys.executable, "-c", code, *words], preexec_fn=limit, env=os.environ | {"ITTA_CACHE": "off"},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1
    assert "cannot be written: the disk is full" in done.stderr
    assert str(tmp_path / "out") in done.stderr
    assert not [p.name for p in (tmp_path / "out").iterdir() if p.suffix in (".tmp", "", ".safetensors", ".html")][1:]


def test_records_that_are_all_damaged_are_counted(tmp_path, fails):
    (tmp_path / "records.jsonl").write_text("[]\nnull\n")
    assert f"There are 2 damaged lines of {tmp_path / 'records.jsonl'}, skipped." in fails("report", tmp_path)


def test_a_record_without_a_step_stops_a_resume(photos, tmp_path, fails):
    out = tmp_path / "run"
    flags = [*TINY, "--no-page", "--set", "batch_size=4", "--out", str(out)]
    assert main(["train", str(photos), "--target", "night", *flags]) == 0
    with open(out / "records.jsonl", "a") as file:
        file.write('{"adapter": "tent"}\n')
    said = fails("train", photos, "--target", "night", *flags)
    assert "a line without a step" in said
    assert str(out / "records.jsonl") in said
