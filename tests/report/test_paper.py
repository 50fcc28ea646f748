"""The paper's figures, checked against each other: a slip in one shows in what the paper computes from it."""

import pytest

from itta.report.cells import Cell, TableOptions
from itta.report.filled_layout import FilledLayout, row_summaries
from itta.report.layouts import PAPER_TABLES
from itta.report.paper import Figure, published_tables

NOT_THE_MEAN = {("ablation", "Ours w/o TTT"), ("learnable-loss", "Ours w/o TTT")}  # printed 82.8; the cells say 82.6


def domains(table: str) -> list[str]:
    return [c.label for c in PAPER_TABLES[table].columns if c.label != "Avg."]


def test_every_table_has_its_rows_and_columns() -> None:
    assert published_tables().keys() == PAPER_TABLES.keys()
    for name, layout in PAPER_TABLES.items():
        rows = published_tables()[name]
        assert rows.keys() == {r.label for r in layout.rows}, name
        columns = [c.label for c in layout.columns] + list(layout.summaries)
        for label, figures in rows.items():
            missing = {"Score"} if (name, label) == ("multi-source", "ERM") else set()
            assert list(figures) == [c for c in columns if c not in missing], (name, label)


@pytest.mark.parametrize("table", PAPER_TABLES)
def test_averages_are_those_of_the_cells(table: str) -> None:
    for row, figures in published_tables()[table].items():
        mean = sum(figures[d].mean for d in domains(table)) / len(domains(table))
        rounding = 0.1  # half a digit in the cells, half in the average
        assert (abs(mean - figures["Avg."].mean) <= rounding + 1e-9) != ((table, row) in NOT_THE_MEAN), (table, row)


def test_the_overview_repeats_the_tables_of_each_data_set() -> None:
    overview = published_tables()["multi-source"]
    for column in domains("multi-source"):
        for row, figures in published_tables()[column.lower()].items():
            assert overview[row][column] == figures["Avg."], (column, row)


def test_our_row_is_the_same_everywhere() -> None:
    rows = {"pacs": "Ours", "ttt": "Ours", "ablation": "Ours", "alpha": "α = 1", "steps": "1 step"}
    rows |= {"structures": "f_w, 10 layers", "learnable-loss": "Ours"}
    assert len({tuple(published_tables()[table][row].values()) for table, row in rows.items()}) == 1
    assert published_tables()["structures"]["f_Θ, 5 layers"] == published_tables()["pacs"]["Ours"]
    assert published_tables()["augmentation"]["ERM"] == published_tables()["pacs"]["ERM"]


def exact(figure: Figure) -> Cell:
    """A cell with the printed mean and error, in tenths so that both are whole: m − 2e, m − 2e, m + 2e, m + 2e."""
    assert figure.error is not None
    m, e = round(10 * figure.mean), round(10 * figure.error)
    return Cell({(i,): float(m + 2 * e * sign) for i, sign in enumerate((-1, -1, 1, 1))})


def test_scores_and_top5_follow_from_our_definition() -> None:
    printed, labels = published_tables()["multi-source"], domains("multi-source")
    cells = {row: {c: exact(figures[c]) for c in labels} for row, figures in printed.items()}
    assert (cells["ERM"]["PACS"].mean, cells["ERM"]["PACS"].error) == (798, 4)
    summary = row_summaries(FilledLayout(PAPER_TABLES["multi-source"], TableOptions(), "in", cells, {}, []))
    assert all(found["Score"] == printed[row]["Score"].mean for row, found in summary.items() if row != "ERM")
    different = {row for row, found in summary.items() if found["Top5"] != printed[row]["Top5"].mean}
    assert different == {"SagNet", "Fish"}  # in fifth place with another, to the digits printed: 35.3 ± 0.1, 62.0
