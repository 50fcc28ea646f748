"""The page of the benchmark, its figure and the claims follow from records; these are made up."""

import doctest
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from PIL import Image

from benchmarks import benchmark_results, benchmark_tables, pages, spot_check
from benchmarks.benchmark_claims import AHEAD, ALPHA, BETTER, LEARNED, ONE_SOURCE
from benchmarks.benchmark_results import Results, read_results
from benchmarks.pages import replace_rows
from itta import records
from itta.errors import InputError
from itta.records import Record

Made = Callable[..., list[Record]]
DOMAINS = ("art_painting", "cartoon", "photo", "sketch")
OFFSETS = dict(zip(DOMAINS, (0.0, 0.01, 0.02, 0.03)))  # of the differences between targets
DOCS = Path(__file__).parents[1] / "docs"


def trained(
    made: Made, algorithm: str, accuracy: float, seeds: int = 2, spread: float = 0.0, **more: Any
) -> list[Record]:
    """A method on all targets; ``spread`` makes its difference from others vary between targets."""
    return [
        r
        for seed in range(seeds)
        for target in DOMAINS
        for r in made(algorithm, target, seed, accuracy + 0.001 * seed + spread * OFFSETS[target], **more)
    ]


def adapted(runs: list[Record], adapter: str, gain: float, order: str) -> list[Record]:
    found = []
    for r in runs:
        (target,) = r.trial.test_domains
        accuracy = {target: {split: a + gain for split, a in r.accuracy[target].items()}}
        found.append(replace(r, adapter=adapter, accuracy=accuracy, stream={"order": order, "seed": 0}))
    return found


@pytest.fixture
def folder(made: Made, tmp_path: Path) -> Path:
    erm, itta = trained(made, "erm", 0.5), trained(made, "itta", 0.52, spread=1.0, hparams={"alpha": 1.0})
    rsc = trained(made, "rsc", 0.2) + trained(made, "rsc", 0.4, steps=900, step=900)
    longer = trained(made, "erm", 0.55, steps=900, step=900)
    longer_itta = trained(made, "itta", 0.6, hparams={"alpha": 1.0}, steps=900, step=900)
    longer += longer_itta + adapted(longer_itta, "guarded itta+", 0.01, "iid")
    pairs = [
        r
        for runs in (erm, itta)
        for order, gain in (("iid", 0.01), ("dirichlet", 0.2))
        for r in adapted(runs, "guarded itta+", gain, order) + adapted(runs, "tent", -0.3, order)
    ]
    pacs = erm + itta + rsc + longer + trained(made, "consistency", 0.53, spread=-1.0)
    records.write_all(tmp_path / "benchmark_pacs.jsonl", pacs)
    records.write_all(tmp_path / "benchmark_adapters.jsonl", pairs)
    for name in ("cost_training.json", "cost_adapting.json"):
        (tmp_path / name).write_text((DOCS / "results" / "records" / name).read_text())
    (tmp_path / "page.md").write_text((DOCS / "results" / "benchmark.md").read_text())
    (tmp_path / "claims.md").write_text((DOCS / "results" / "paper_claims.md").read_text())
    return tmp_path


def write(folder: Path) -> str:
    options = benchmark_tables.Options(folder, folder / "page.md", folder / "claims.md", folder / "benchmark.png")
    benchmark_tables.main(options)
    return (folder / "page.md").read_text()


def row_of(page: str, name: str) -> list[str]:
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line.startswith("|")]
    return next(row for row in rows if row[0] == name)


@pytest.mark.slow
def test_the_page_has_every_method_with_what_it_can_be_told_from(folder: Path) -> None:
    page = write(folder)
    assert row_of(page, "ITTA's training")[4:8] == ["55.0", "53.6 ± 0.0", "2", "+3.5 (+1.4 … +5.6)"]
    assert row_of(page, "ITTA's training")[8:] == ["above", "best", "82.8"]
    assert row_of(page, "ERM")[7:] == ["", "base", "below", "79.8"]
    assert row_of(page, "RSC")[6:9] == ["2", "−30.0 (−30.0 … −30.0)", "below"]
    assert row_of(page, "RSC, 900 steps")[7] == "−15.0 (−15.0 … −15.0)"  # ERM had 900 steps, too
    assert row_of(page, "ERM, 900 steps")[8] == "base"
    assert "The interval of RSC lies below ERM." in page
    assert "**After 900 steps**, ITTA's training + `itta+` has 61.1" in page
    assert "% with classes at random, +6.0 (+6.0 … +6.0) over ERM of as many steps alone." in page
    assert "The interval of ITTA's training lies above ERM." in page
    assert write(folder) == page


@pytest.mark.slow
def test_adapters_have_a_table_for_each_order_and_the_best_pair_is_named(folder: Path) -> None:
    page = write(folder)
    random, clusters = page.index("## Test-time methods on PACS, classes at random"), page.index("classes in clusters")
    assert row_of(page[random:clusters], "`itta+`")[2] == "+1.0 (+1.0 … +1.0)"
    assert row_of(page[clusters:], "TENT")[4] == "−30.0 (−30.0 … −30.0)"
    assert row_of(page[clusters:], "`itta+`")[5] == "+3.5 (+1.4 … +5.6)"
    assert "The best pair is **ITTA's training + `itta+`**" in page
    assert "On ERM's models, these methods lose on every target: TENT." in page
    assert "**PACS, over both orders.** The best pair is **ITTA's training + `itta+`**, +14.0 (+11.9 … +16.1)" in page


@pytest.mark.slow
def test_the_claims_follow_the_records(folder: Path, made: Made) -> None:
    before = (folder / "claims.md").read_text().splitlines()
    write(folder)
    claims = (folder / "claims.md").read_text()
    assert "PACS: +3.5 (+1.4 … +5.6) points, 4 targets, 8 pairs of trainings" in " ".join(row_of(claims, BETTER))
    assert row_of(claims, BETTER)[2] == "confirmed here"
    assert row_of(claims, LEARNED)[2] == "ahead on average, not decided"
    assert "ahead of 3 of 3 methods" in row_of(claims, AHEAD)[1]
    assert row_of(claims, AHEAD)[2] == "ahead on average, not decided"
    assert len(claims.splitlines()) == len(before)
    pacs = [r for name in ("pacs", "adapters") for r in records.read(folder / f"benchmark_{name}.jsonl")]
    emoji = [replace(r, trial=replace(r.trial, dataset="emoji")) for r in pacs]
    records.write_all(folder / "benchmark_emoji.jsonl", emoji)
    weak = trained(made, "itta", 0.4, 1, hparams={"alpha": 0.1}, overrides={"alpha": "0.1"})
    records.write_all(folder / "benchmark_alpha.jsonl", weak)
    page, claims = write(folder), (folder / "claims.md").read_text()
    assert "both: +3.5 (+2.5 … +4.5) points, 8 targets, 16 pairs of trainings, p = 0.0078" in row_of(claims, BETTER)[1]
    assert "α = 0.1: 40.0 %; α = 1: 53.6 %" in row_of(claims, ALPHA)[1]
    assert row_of(page, "0.1")[2] == "−13.5 (−15.6 … −11.4)"
    assert "## Training methods on EmojiStyles" in page
    assert "## Test-time methods on EmojiStyles, classes in clusters" in page


@pytest.mark.slow
def test_single_source_runs_and_other_networks_have_sections(folder: Path, made: Made) -> None:
    single = [
        r
        for name, accuracy in (("erm", 0.3), ("itta", 0.35))
        for source in DOMAINS
        for target in DOMAINS
        for r in (made(name, target, 0, accuracy, sources=(source,)) if source != target else ())
    ]
    records.write_all(folder / "benchmark_single.jsonl", single)
    records.write_all(folder / "benchmark_resnet.jsonl", trained(made, "erm", 0.6, backbone="resnet18"))
    page = write(folder)
    columns = row_of(page[page.index("## One source") : page.index("## ResNet-18")], "accuracy on the target, %")
    assert columns[1:4] == ["A→C", "A→P", "A→S"]
    assert len(columns) == 1 + 12 + 6
    assert "| ERM " in page[page.index("## ResNet-18 on PACS") :]
    claim = row_of((folder / "claims.md").read_text(), ONE_SOURCE)
    assert claim[1].startswith("over ERM: +5.0 (+5.0 … +5.0) points, 4 targets, 12 pairs")
    assert claim[2] == "confirmed here"


@pytest.mark.slow
def test_the_figure_shows_costs_of_longer_trainings_and_adapters(folder: Path) -> None:
    from benchmarks.benchmark_figure import adapter_points, read_costs, training_points

    write(folder)
    with Image.open(folder / "benchmark.png") as picture:
        assert picture.width > 1000
    costs = read_costs(folder / "cost_training.json")
    results, pairs = read_results(folder / "benchmark_pacs.jsonl"), read_results(*folder.glob("benchmark_*.jsonl"))
    assert isinstance(results, Results)
    assert isinstance(pairs, Results)
    found = {p.name: p for p in training_points(results, costs)}
    assert found["ERM"].cost == 1.0
    assert found["RSC, 900 steps"].cost == pytest.approx(30 * costs["rsc"])
    gains = {p.name: p for p in adapter_points(pairs, "dirichlet", json.loads('{"itta+": 1.5, "tent": 5}'))}
    assert (gains["itta+"].cost, gains["itta+"].value) == (1.5, pytest.approx(20.0))


def test_two_settings_of_one_method_are_not_chosen_from(folder: Path) -> None:
    """They would be, if records of two versions of an adapter were joined."""
    file = folder / "benchmark_adapters.jsonl"
    found = list(records.read(file))
    older = [replace(r, adapter_hparams={"pull": 0.1}) for r in found if r.adapter == "guarded itta+"]
    records.write_all(file, [*(replace(r, adapter_hparams={"pull": 0.4}) for r in found), *older])
    with pytest.raises(InputError, match=r"several settings of one method: erm \+ guarded itta\+ \(pull=0.1"):
        write(folder)


def test_a_folder_without_records_and_a_page_without_rows_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no benchmark_"):
        benchmark_tables.main(benchmark_tables.Options(tmp_path))
    with pytest.raises(InputError, match="begins with 'a claim'"):
        replace_rows("| another | row |", {"a claim": ""})


@pytest.mark.slow
def test_the_published_page_is_what_the_command_writes(tmp_path: Path) -> None:
    for name, page in (("page.md", "benchmark.md"), ("claims.md", "paper_claims.md")):
        (tmp_path / name).write_text((DOCS / "results" / page).read_text())
    files = tmp_path / "page.md", tmp_path / "claims.md", tmp_path / "benchmark.png"
    benchmark_tables.main(benchmark_tables.Options(DOCS / "results" / "records", *files))
    assert files[0].read_text() == (DOCS / "results" / "benchmark.md").read_text()
    assert files[1].read_text() == (DOCS / "results" / "paper_claims.md").read_text()


@pytest.mark.parametrize("module", [benchmark_tables, benchmark_results, pages, spot_check])
def test_the_examples_in_the_code_hold(module: ModuleType) -> None:
    found = doctest.testmod(module)
    assert found.attempted > 0
    assert found.failed == 0


@pytest.mark.slow
def test_being_ahead_of_most_is_no_confirmation(folder: Path, made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """The verdict says of how many methods ITTA is ahead on average, and from how many it is told."""
    monkeypatch.setattr("benchmarks.benchmark_claims.MANY", 3)
    pacs = [*records.read(folder / "benchmark_pacs.jsonl"), *trained(made, "sd", 0.9)]
    records.write_all(folder / "benchmark_pacs.jsonl", pacs)
    write(folder)
    claim = row_of((folder / "claims.md").read_text(), AHEAD)
    assert "ahead of 3 of 4 methods" in claim[1]
    assert claim[2] == "ahead of 3 on average, told from 2"
    monkeypatch.setattr("benchmarks.benchmark_claims.MANY", 4)
    write(folder)
    assert row_of((folder / "claims.md").read_text(), AHEAD)[2] == "not confirmed"
