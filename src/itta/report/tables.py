"""Tables of text in Markdown, LaTeX and HTML, and the numbers in them: percentages with one decimal."""

import html
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from tabulate import tabulate

from itta.metrics.accuracy import mean_and_error, percent

BOLD = "\ue000", "\ue001"  # placeholders of bold text, until the escapes of a format are done
LATEX = {
    BOLD[0]: r"\textbf{",
    BOLD[1]: "}",
    "±": r"$\pm$",
    "→": r"$\rightarrow$",
    "−": "$-$",
    "α": r"$\alpha$",
    "Θ": r"$\Theta$",
    "≥": r"$\geq$",
    "√": r"$\surd$",
    "×": r"$\times$",
}


@dataclass(frozen=True)
class Table:
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    best: Collection[tuple[int, int]] = ()  # (row, column) of cells to print in bold
    notes: Sequence[str] = ()

    def to_markdown(self) -> str:
        """
        >>> print(Table("", ["method", "mean"], [["ERM", "46.1"]]).to_markdown())
        | method   |   mean |
        |:---------|-------:|
        | ERM      |   46.1 |
        """
        marks = {"|": "\\|", BOLD[0]: "**", BOLD[1]: "**"}
        return self.render(
            "pipe", [[translate(cell, marks) for cell in row] for row in (self.columns, *self.marked_rows())]
        )

    def to_latex(self) -> str:
        """For booktabs, with the title as its caption and the notes below."""
        body = translate(self.render("latex_booktabs", [self.columns, *self.marked_rows()]), LATEX)
        notes = [rf"\par\footnotesize {latex_text(note)}" for note in self.notes]
        return "\n".join(
            [r"\begin{table}", r"\centering", rf"\caption{{{latex_text(self.title)}}}", body, *notes, r"\end{table}"]
        )

    def to_html(self) -> str:
        body = translate(self.render("html", [self.columns, *self.marked_rows()]), {BOLD[0]: "<b>", BOLD[1]: "</b>"})
        caption = f"<caption>{html.escape(self.title)}</caption>"
        notes = [f"<p>{html.escape(note)}</p>" for note in self.notes]
        return "\n".join([body.replace("<table>", f"<table>\n{caption}", 1), *notes])

    def to_text(self) -> str:
        """Markdown with its title and notes."""
        return "\n".join([self.title, "", self.to_markdown(), *(f"\n{note}" for note in self.notes)])

    def marked_rows(self) -> list[list[str]]:
        return [
            [BOLD[0] + cell + BOLD[1] if (i, j) in self.best else cell for j, cell in enumerate(row)]
            for i, row in enumerate(self.rows)
        ]

    def render(self, format: str, cells: Sequence[Sequence[str]]) -> str:
        align = ["left"] + ["right"] * (len(self.columns) - 1)
        return str(tabulate(cells[1:], cells[0], format, disable_numparse=True, colalign=align if cells[1:] else None))


def translate(text: str, marks: Mapping[str, str]) -> str:
    return text.translate({ord(mark): meaning for mark, meaning in marks.items()})


def latex_text(text: str) -> str:
    """Text with LaTeX's special characters escaped.

    >>> latex_text("50 % ± f_w")
    '50 \\\\% $\\\\pm$ f\\\\_w'
    """
    own = {c: f"\\{c}" for c in "&%$#_{}"} | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\^{}"}
    return translate(text, own | LATEX)


def points(value: float) -> str:
    """A difference of accuracies.

    >>> points(0.0123), points(-0.5)
    ('+1.2', '-50.0')
    """
    return f"{100 * value:+.1f}"


def percent_mean(values: Sequence[float]) -> str:
    """
    >>> percent_mean([0.1, 0.2, 0.3])
    '20.0 ± 4.7'
    """
    mean, error = mean_and_error(values)
    return f"{percent(mean)} ± {percent(error)}"
