"""itta report and itta records, from files to what they print. Every number in the records is made up."""

import csv
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from itta import records
from itta.cli import main
from itta.metrics.selection import SELECTIONS, ChosenCheckpoint, Selection
from itta.records import Record
from itta.report.layouts import TABLES, Layout, Row, leave_one_out
from itta.report.rendering import FORMATS
from itta.trial import Trial

DOMAINS = ("art_painting", "cartoon", "photo", "sketch")


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A folder with a run for each of two methods, four targets and three seeds; one of them also adapted."""
    for i, algorithm in enumerate(("erm", "itta")):
        for t, target in enumerate(DOMAINS):
            for seed in range(3):
                sources = tuple(d for d in DOMAINS if d != target)
                trial = Trial("data/PACS", algorithm, sources, (target,), 0, seed, steps=30)
                value = 0.5 + i / 10 + t / 100 + seed / 50
                accuracy = {d: {"out": 0.8} for d in sources} | {target: {"in": value, "out": value, "all": value}}
                model = Record(trial, 30, "source", accuracy, calibration={target: {"in": 0.1}})
                folder = tmp_path / "runs" / f"{algorithm}-{target}-{seed}"
                folder.mkdir(parents=True)
                records.append(folder / "records.jsonl", model)
                if algorithm == "itta":
                    better = {target: {"in": value + 0.02, "out": value, "all": value}}
                    records.append(folder / "records.jsonl", replace(model, adapter="itta", accuracy=better))
    return tmp_path / "runs"


def fails(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    capsys.readouterr()
    assert main([str(w) for w in words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_everything_found(runs: Path, run_itta: Callable[..., str]) -> None:
    text = run_itta("report", runs)
    rows = {line.split("|")[1].strip(): line for line in text.splitlines() if line.startswith("|")}
    assert rows.keys() >= {"erm", "itta", "itta + itta"}
    assert "52.0 ± 0.9" in rows["erm"]
    assert "**65.5 ± 0.9**" in rows["itta + itta"]
    assert "training-domain validation" in text


def test_a_table_of_the_paper_beside_the_papers(runs: Path, run_itta: Callable[..., str]) -> None:
    text = run_itta("report", runs, "--table", "ablation", "--beside-paper")
    assert "| Ours w/o TTT, paper |" in text
    assert "83.8 ± 0.3" in text
    assert "not adapted" in text  # scope=all was not run


@pytest.mark.parametrize("rule", ["training-domain", "oracle", "leave-one-domain-out"])
def test_rules(runs: Path, run_itta: Callable[..., str], rule: str) -> None:
    text = run_itta("report", runs, "--selection", rule)
    assert ("no pair runs" in text) == (rule == "leave-one-domain-out")


@pytest.mark.slow
def test_formats(runs: Path, run_itta: Callable[..., str], tmp_path: Path) -> None:
    assert r"\toprule" in run_itta("report", runs, "--format", "latex", "--compare", "erm")
    assert "<table>" in run_itta("report", runs, "--format", "html")
    rows = list(csv.DictReader(io.StringIO(run_itta("report", runs, "--format", "csv"))))
    assert {r["row"] for r in rows} == {"erm", "itta", "itta + itta"}
    out = tmp_path / "new" / "table.md"
    assert run_itta("report", runs, "--out", out) == ""
    assert out.read_text(encoding="utf-8").startswith("Everything recorded")


@pytest.mark.slow
def test_comparison_calibration_and_figures(runs: Path, run_itta: Callable[..., str], tmp_path: Path) -> None:
    flags = ["--compare", "erm", "--calibration", "--figures", tmp_path / "figures"]
    text = run_itta("report", runs, *flags)
    assert "+10.0" in text
    assert "too few targets" in text
    assert "A p-value needs at least 6 targets" in text
    assert "10.0 ± 0.0" in text
    assert (tmp_path / "figures" / "domains.png").is_file()
    assert "figures" not in text  # what a pipe takes is the table alone
    result = json.loads(run_itta("report", runs, "--json", *flags))
    assert {c["row"] for c in result["cells"]} == {"erm", "itta", "itta + itta"}
    assert [c["row"] for c in result["comparisons"]] == ["itta", "itta + itta"]
    assert [Path(f).name for f in result["figures"]] == ["domains.png", "ranks.png"]


def test_where(runs: Path, run_itta: Callable[..., str]) -> None:
    rows = json.loads(run_itta("report", runs, "--where", "algorithm=erm", "trial_seed=1", "--json"))["cells"]
    assert {(r["row"], r["n"]) for r in rows} == {("erm", 1)}


def test_the_help_lists_every_table_selection_and_format(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["report", "--help"])
    words = capsys.readouterr().out.replace("│", " ").replace(",", " ").replace(".", " ").split()
    assert {*TABLES, *SELECTIONS, *FORMATS} <= {*words}


def test_a_new_layout_is_a_line_in_a_table(
    runs: Path, run_itta: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = (Row("plain", "erm"), Row("adapted", "itta", "itta"))
    monkeypatch.setitem(TABLES, "mine", Layout("Mine", rows, leave_one_out("PACS", ["A", "C", "P", "S"])))
    cells = json.loads(run_itta("report", runs, "--table", "mine", "--json"))["cells"]
    assert {(c["row"], c["column"]) for c in cells} == {(r, c) for r in ("plain", "adapted") for c in "ACPS"}
    assert cells[0]["mean"] == pytest.approx(52)


def test_a_new_selection_is_a_line_in_a_table(
    runs: Path, run_itta: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def worst_target(own: Sequence[Record], pairs: Sequence[Record], target: str) -> ChosenCheckpoint:
        return min((ChosenCheckpoint(r, r.accuracy[target]["in"]) for r in own), key=lambda c: c.validation)

    monkeypatch.setitem(SELECTIONS, "worst", Selection(worst_target, "checkpoint that is worst on the target"))
    text = run_itta("report", runs, "--selection", "worst")
    assert "checkpoint that is worst on the target; mean ± standard error" in text
    assert "52.0 ± 0.9" in text  # each run has one checkpoint


def test_mistakes(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "unknown table 'pasc'. Did you mean 'pacs'?" in fails(capsys, "report", runs, "--table", "pasc")
    assert "unknown selection 'orcle'. Did you mean 'oracle'?" in fails(capsys, "report", runs, "--selection", "orcle")
    assert "unknown format 'pdf'" in fails(capsys, "report", runs, "--format", "pdf")
    assert "--beside-paper needs a table of the paper" in fails(capsys, "report", runs, "--beside-paper")
    assert "no records in" in fails(capsys, "report", runs / "nowhere")
    assert "no records to report" in fails(capsys, "report")
    assert "unknown row 'irm'" in fails(capsys, "report", runs, "--compare", "irm")
    assert "a setting is written name=value" in fails(capsys, "report", runs, "--where", "steps")


def test_there_and_back_through_domainbed(runs: Path, run_itta: Callable[..., str], tmp_path: Path) -> None:
    assert "36 runs written" in run_itta("records", "export", runs, "--out", tmp_path / "sweep")
    back = tmp_path / "back.jsonl"
    result = json.loads(run_itta("records", "import", tmp_path / "sweep", "--out", back, "--json"))
    assert result == {"records": 36, "out": str(back), "notes": {}}
    assert run_itta("report", back) == run_itta("report", runs)


def test_join_files_and_folders(runs: Path, run_itta: Callable[..., str], tmp_path: Path) -> None:
    first = tmp_path / "first.jsonl"
    assert "1 records written" in run_itta("records", "join", runs / "erm-photo-0", "--out", first)
    first.write_text(first.read_text() + "not a record\n")
    text = run_itta("records", "join", first, runs, "--out", tmp_path / "all.jsonl")
    assert "36 records written" in text  # the one of both is there once
    assert "1 damaged lines of" in text
    run_itta("records", "join", runs, "--out", tmp_path / "again.jsonl")
    assert (tmp_path / "all.jsonl").read_bytes() == (tmp_path / "again.jsonl").read_bytes()


def test_export_tells_what_it_leaves_out(runs: Path, run_itta: Callable[..., str], tmp_path: Path) -> None:
    path = runs / "erm-photo-0" / "records.jsonl"
    (model,) = records.read(path)
    for adapter in ("tent", "t3a"):
        records.append(path, replace(model, adapter=adapter, accuracy={"photo": {"all": 0.5}}))
    text = run_itta("records", "export", path, "--out", tmp_path / "sweep")
    assert "1 runs written" in text
    assert "1 records left out: 'tent' was not measured on the splits in and out" in text


def test_mistakes_with_domainbed(runs: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "is not an empty folder" in fails(capsys, "records", "export", runs, "--out", runs)
    assert "holds no runs" in fails(capsys, "records", "import", tmp_path, "--out", tmp_path / "x.jsonl")
    assert "one sweep" in fails(capsys, "records", "import", runs, tmp_path, "--out", tmp_path / "x.jsonl")
    assert "name a file of records" in fails(capsys, "records", "join", "--out", tmp_path / "x.jsonl")
    (tmp_path / "there.jsonl").write_text("")
    assert "exists" in fails(capsys, "records", "import", runs, "--out", tmp_path / "there.jsonl")
