"""Tables, and numbers as they stand in them: percentages with one decimal, mean ± standard error."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def to_markdown(self) -> str:
        """
        >>> print(Table("", ["method", "mean"], [["ERM", "46.1"]]).to_markdown())
        | method | mean |
        | --- | ---: |
        | ERM | 46.1 |
        """
        lines = [list(self.columns), ["---"] + ["---:"] * (len(self.columns) - 1), *map(list, self.rows)]
        return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard error, the deviation divided by n as DomainBed has it.

    >>> [round(100 * v, 1) for v in mean_and_error([0.1, 0.2, 0.3])]
    [20.0, 4.7]
    """
    n = len(values)
    mean = sum(values) / n
    return mean, (sum((v - mean) ** 2 for v in values) / n) ** 0.5 / n**0.5


def percent(value: float) -> str:
    return f"{100 * value:.1f}"


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
