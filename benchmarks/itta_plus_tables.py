"""Make the tables and the figure of docs/results/itta_plus_grid.md, and the table of docs/results/guard_on_targets.md.

They come from the records alone. The tables replace the text between two comments on a page, so the pages follow the
records.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from benchmarks.command import run_command
from benchmarks.itta_plus_grid import BATCHES, DOMAINS, ORDERS, UNEQUAL, Row, read_rows
from itta.errors import InputError
from itta.files import replace_text
from itta.report.plots import pyplot
from itta.report.tables import Table

START, END = "<!-- tables: python -m benchmarks.itta_plus_tables -->", "<!-- end of tables -->"


@dataclass(frozen=True)
class Options:
    records: Path = Path("docs/results/records")  # of benchmarks.itta_plus_grid and itta_plus_rivals
    page: Path = Path("docs/results/itta_plus_grid.md")  # with the comments START and END
    guard_page: Path = Path("docs/results/guard_on_targets.md")  # with the same comments
    figure: Path = Path("docs/images/itta_plus.png")


def cells(rows: Iterable[Row], key: Callable[[Row], tuple[object, ...]]) -> dict[tuple[object, ...], float]:
    """The mean gain of the rows that share a key."""
    found: dict[tuple[object, ...], list[float]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row.gain)
    return {k: mean(gains) for k, gains in found.items()}


def stream_of(row: Row) -> tuple[object, ...]:
    return row.dataset, row.target, row.training, row.seed, row.kind, row.batch, row.images


def cell(row: Row) -> tuple[object, ...]:
    return row.dataset, row.target, row.training, row.kind, row.batch


def shown(gains: Sequence[float]) -> str:
    return f"{mean(gains):+.1f}" if gains else "–"


def target_table(rows: list[Row], training: str) -> Table:
    """itta+ on each target and each of the nine streams."""
    own = [r for r in rows if r.method == "itta+" and r.training == training and r.kind in ORDERS]
    lines = []
    for dataset, target in dict.fromkeys((r.dataset, r.target) for r in own):
        here = [r for r in own if (r.dataset, r.target) == (dataset, target)]
        gains = [shown([r.gain for r in here if (r.kind, r.batch) == (o, b)]) for o in ORDERS for b in BATCHES]
        lines.append([f"{dataset} {target}", f"{mean(r.before for r in here):.1f}", *gains])
    columns = [shown([r.gain for r in own if (r.kind, r.batch) == (o, b)]) for o in ORDERS for b in BATCHES]
    lines.append(["mean", "", *columns])
    title = f"itta+ on models trained with {training}: points gained over the trained model"
    return Table(title, ["target", "trained, %", *(f"{o}, {b}" for o in ORDERS for b in BATCHES)], lines)


def method_table(rows: list[Row], title: str) -> Table:
    """Methods on the streams of one domain in rows."""
    lines = []
    for method in dict.fromkeys(r.method for r in rows):
        own = [r for r in rows if r.method == method and r.kind in ORDERS]
        kinds = [shown([r.gain for r in own if r.kind == o]) for o in ORDERS]
        worst, single = min(cells(own, cell).values()), min(r.gain for r in own)
        lines.append([method, str(len(own)), *kinds, shown([r.gain for r in own]), f"{worst:+.1f}", f"{single:+.1f}"])
    return Table(title, ["method", "streams", *ORDERS, "mean", "worst cell", "worst stream"], lines)


def on_same_streams(rows: list[Row], others: list[Row]) -> list[Row]:
    """Return the rows of itta+ on the streams of other rows."""
    streams = {stream_of(r) for r in others}
    return [r for r in rows if r.method == "itta+" and stream_of(r) in streams]


def rivals_table(rivals: list[Row]) -> Table:
    """Methods that train the network, each beside itta+ on the same streams."""
    lines = []
    for method in dict.fromkeys(r.method for r in rivals):
        own = [r for r in rivals if r.method == method]
        same = on_same_streams(rivals, own)
        kinds = [shown([r.gain for r in own if r.kind == o]) for o in ORDERS]
        gains = [shown([r.gain for r in of]) for of in (own, same)]
        targets = len({(r.dataset, r.target) for r in own})
        lines.append([method, str(targets), str(len(own)), *kinds, *gains, f"{min(r.gain for r in own):+.1f}"])
    columns = ["method", "targets", "streams", *ORDERS, "mean", "itta+ on the same streams", "worst stream"]
    return Table("Methods that train the network at test time", columns, lines)


def guard_table(rows: list[Row]) -> Table:
    """Every method alone and guarded, on the streams on which both were measured."""
    lines = []
    for method in dict.fromkeys(r.method for r in rows):
        alone, guarded = ([r for r in rows if r.method == name] for name in (method, f"guarded {method}"))
        both = {stream_of(r) for r in alone} & {stream_of(r) for r in guarded}
        if not both:
            continue
        alone, guarded = ([r for r in of if stream_of(r) in both] for of in (alone, guarded))
        targets = len({(r.dataset, r.target) for r in alone})
        worst = min(cells(guarded, cell).values())
        gains = [shown([r.gain for r in of]) for of in (alone, guarded)]
        ends = [f"{min(r.gain for r in of):+.1f}" for of in (alone, guarded)]
        lines.append([method, str(targets), str(len(both)), gains[0], ends[0], gains[1], ends[1], f"{worst:+.1f}"])
    columns = ["method", "targets", "streams", "alone", "worst stream", "guarded", "worst stream ", "worst cell"]
    return Table("Points gained over the trained model, alone and guarded", columns, lines)


def other_table(rows: list[Row]) -> Table:
    """itta+ on unequal classes and on several domains, batches of 16."""
    lines = []
    for kind in (*UNEQUAL, *DOMAINS):
        own = [r for r in rows if r.method == "itta+" and r.kind == kind]
        if own:
            worst = min(cells(own, cell).values())
            lines.append([kind, shown([r.gain for r in own]), f"{worst:+.1f}", f"{min(r.gain for r in own):+.1f}"])
    return Table("Unequal classes, and several domains", ["stream", "mean", "worst cell", "worst stream"], lines)


def ablation_table(rows: list[Row]) -> Table:
    kinds, lines = (*ORDERS, *UNEQUAL, *DOMAINS), []
    whole = {stream_of(r) for r in rows if r.method != "itta+"}
    rows = [r for r in rows if stream_of(r) in whole]  # the ablation has fewer models
    for method in dict.fromkeys(r.method for r in rows):
        own = [r for r in rows if r.method == method and r.kind in kinds]
        if own:
            worst = min(cells(own, cell).values())
            lines.append([method, *(shown([r.gain for r in own if r.kind == k]) for k in kinds), f"{worst:+.1f}"])
    return Table("Each part, batches of 16", ["variant", *kinds, "worst cell"], lines)


def batch_means(rows: list[Row]) -> dict[int, float]:
    own = [r for r in rows if r.method == "itta+" and r.kind in ORDERS]
    return {b: mean(r.gain for r in own if r.batch == b) for b in BATCHES}


def aims_table(rows: list[Row], rivals: list[Row]) -> Table:
    """The aims that were set before the measurement, beside the measured values."""
    own = [r for r in rows if r.method == "itta+"]
    grid = [r for r in own if r.kind in ORDERS]
    lines: list[list[str]] = []

    def add(aim: str, least: float, value: float) -> None:
        lines.append([aim, f"{least:+.1f}", f"{value:+.2f}", "yes" if value >= least else "no"])

    add("itta+, mean of all streams of one domain", 4.0, mean(r.gain for r in grid))
    add("itta+, worst mean over seeds of a target and stream", 0.0, min(cells(grid, cell).values()))
    add("itta+, worst stream", -1.0, min(r.gain for r in grid))
    unequal, several = ([r for r in own if r.kind in kinds] for kinds in (UNEQUAL, DOMAINS))
    add("itta+, mean with unequal classes", 1.0, mean(r.gain for r in unequal))
    add("itta+, worst target with unequal classes", -0.5, min(cells(unequal, cell).values()))
    add("itta+, worst stream of several domains", -0.5, min(r.gain for r in several))
    batches = batch_means(rows)
    add("itta+, batches of 1 minus batches of 64", -0.5, batches[1] - batches[64])
    for method in ("t3a", "lame", "rotta"):
        guarded = [r for r in [*rows, *rivals] if r.method == f"guarded {method}"]
        if guarded:
            add(f"guarded {method}, worst target and stream", -1.0, min(cells(guarded, cell).values()))
    leads = []
    for method in dict.fromkeys(r.method for r in [*rows, *rivals] if r.method != "itta+"):
        other = [r for r in [*rows, *rivals] if r.method == method and r.kind in ORDERS]
        same = on_same_streams([*rows, *rivals], other)
        leads.append((mean(r.gain for r in same) - mean(r.gain for r in other), method))
    lead, rival = min(leads)
    add(f"itta+ minus any other method on the same streams (least: {rival})", 0.0, lead)
    return Table("Aims set before the measurement", ["aim", "at least", "measured", "reached"], lines)


def draw(rows: list[Row], path: Path) -> None:
    """A mark for each target and stream."""
    plt = pyplot()
    methods = list(dict.fromkeys(r.method for r in rows))
    figure, axes = plt.subplots(figsize=(7, 0.5 + 0.5 * len(methods)))
    colours = dict(zip(ORDERS, ("tab:blue", "tab:orange", "tab:green")))
    for y, method in enumerate(reversed(methods)):
        own = [r for r in rows if r.method == method and r.kind in ORDERS]
        for (*_, kind, _), gain in cells(own, cell).items():
            offset = 0.2 * (ORDERS.index(str(kind)) - 1)
            axes.plot(gain, y - offset, ".", color=colours[str(kind)], alpha=0.5)
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_yticks(range(len(methods)), reversed(methods))
    axes.set_xlabel("points gained over the trained model; a mark is a target and a stream")
    marks = [plt.Line2D([], [], color=c, marker=".", linestyle="") for c in colours.values()]
    axes.legend(marks, list(colours), loc="lower center", bbox_to_anchor=(0.5, 1.0), ncol=len(marks), frameon=False)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def fill(page: str, text: str) -> str:
    """Replace the text between the two comments of a page.

    >>> fill(f"a {START} old {END} b", "new").split()[-5:-1]
    ['new', '<!--', 'end', 'of']
    """
    if START not in page or END not in page:
        raise InputError(f"the page needs the lines {START} and {END}.")
    return page[: page.index(START)] + f"{START}\n\n{text}\n{END}" + page[page.index(END) + len(END) :]


def main(options: Options) -> None:
    rows, parts = (read_rows(options.records / f"itta_plus_{name}.csv") for name in ("grid", "ablation"))
    rivals = read_rows(options.records / "itta_plus_rivals.csv")
    seeds = "A number is the mean over the seeds that were measured."
    tables = [(aims_table(rows, rivals), "The last column says whether the aim is reached.")]
    tables += [(target_table(rows, t), seeds) for t in dict.fromkeys(r.training for r in rows)]
    tables.append((method_table(rows, "Methods that need no gradient"), "The guard bounds losses and costs gain."))
    tables.append((other_table(rows), "A worst cell or stream below zero is a loss against the trained model."))
    if rivals:
        lengths = " or ".join(str(n) for n in sorted({row.images for row in rivals}))
        tables.append((rivals_table(rivals), f"These streams have {lengths} images in batches of 16."))
    tables.append((ablation_table(parts), "The first row is the default; each other row changes one part."))
    models = Counter(training for training, *_ in {(r.training, r.dataset, r.target, r.seed) for r in rows})
    counts = ", ".join(f"{n} trained with {training}" for training, n in sorted(models.items()))
    batches = ", ".join(f"{b}: {gain:+.2f}" for b, gain in batch_means(rows).items())
    text = f"Models measured so far: {counts}. Mean gain of `itta+` by batch size: {batches}.\n\n"
    text += "\n".join(f"### {t.title}\n\n{t.to_markdown()}\n\n{meaning}\n" for t, meaning in tables)
    replace_text(options.page, fill(options.page.read_text(), text))
    table = guard_table([*rows, *rivals]).to_markdown()
    guarded = f"{table}\n\nThe guard prevents most of the harm, and costs a part of the gain.\n"
    replace_text(options.guard_page, fill(options.guard_page.read_text(), guarded))
    draw(rows, options.figure)
    print(text)


if __name__ == "__main__":
    run_command("itta_plus_tables", main, Options(), __doc__)
