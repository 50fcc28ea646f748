"""Write the tables, the figure and the sentences of docs/results/benchmark.md from the records of the benchmark.

Each file of records is optional: a part of the benchmark that has not run yet has no table. The rows of
docs/results/paper_claims.md that the benchmark decides are written too. Sentences are computed from the figures.

python -m benchmarks.benchmark_tables
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.benchmark_claims import alpha_claim, alpha_rows, claim_rows, one_source_claim
from benchmarks.benchmark_figure import draw
from benchmarks.benchmark_pairs import adapter_sentences, adapter_table, both_orders, pairs_of
from benchmarks.benchmark_results import (
    ORDERS,
    Results,
    best_of,
    budget_of,
    by_mean,
    by_steps,
    listed,
    mean_text,
    name_of,
    read_results,
    told_apart,
    with_interval,
)
from benchmarks.command import run_command
from benchmarks.pages import meaning, replace_rows, write_between
from itta.errors import InputError
from itta.files import replace_text
from itta.metrics.accuracy import percent
from itta.metrics.significance import RowComparison
from itta.report.comparison import verdict
from itta.report.layouts import Row
from itta.report.paper import Figure, published_tables
from itta.report.tables import Table


@dataclass(frozen=True)
class Options:
    records: Path = Path("docs/results/records")  # with benchmark_*.jsonl, cost_training.json and cost_adapting.json
    page: Path = Path("docs/results/benchmark.md")  # with two comments around the tables
    claims: Path = Path("docs/results/paper_claims.md")  # with a row for each claim
    figure: Path = Path("docs/images/benchmark.png")


@dataclass(frozen=True)
class Part:
    """A part of the benchmark: a file of records with trained models."""

    file: str
    title: str
    about: str  # a sentence above its table
    paper: str = ""  # the paper's table to print beside ours
    sweeps: tuple[str, ...] = ()  # that trained the models, after `itta sweep`, if they are not on the page already
    adapted: str = ""  # name of the data for the tables of adapters, if it has them


PARTS = (
    Part(
        "benchmark_pacs.jsonl",
        "Training methods on PACS",
        "EfficientNet-Lite0, 64 pixels, no adaptation if the row names none.",
        "pacs",
        adapted="PACS",
    ),
    Part(
        "benchmark_emoji.jsonl",
        "Training methods on EmojiStyles",
        "EfficientNet-Lite0, 64 pixels, no adaptation if the row names none.",
        adapted="EmojiStyles",
    ),
    Part(
        "benchmark_single.jsonl",
        "One source domain of PACS",
        "A model learns one domain and is measured on the three others; A→C is art painting to cartoon.",
        "single-source",
        (
            "PACS --recipe quick --single-source --algorithms erm mixstyle consistency itta --trial-seeds 3",
            "PACS --recipe quick --single-source --algorithms itta --adapters itta --trial-seeds 3",
        ),
    ),
    Part(
        "benchmark_resnet.jsonl",
        "ResNet-18 on PACS",
        "ResNet-18 at 96 pixels. Its ImageNet weights were decoded from a published quantised model: 67.2 % top-1 on "
        "5,000 validation images, where torchvision's own have 69.8 %. Without `--weights` it starts from the latter.",
        "pacs",
        (
            "PACS --recipe quick --backbone resnet18 --weights resnet18_imagenet.safetensors --image-size 96 "
            "--algorithms erm consistency itta --trial-seeds 2",
        ),
    ),
)


def paper_figure(row: Row, table: str) -> Figure | None:
    """The mean that the paper prints for a method, in any of its tables about the same task."""
    tables = published_tables()
    pacs = {
        ("consistency", "source"): ("ttt", "Baseline"),
        ("metareg", "source"): ("learnable-loss", "MetaReg"),
        ("feature_critic", "source"): ("learnable-loss", "Feature-Critic"),
        ("itta", "source"): ("ablation", "Ours w/o TTT"),
        ("ttt", "ttt"): ("ttt", "TTT"),
        ("mt3", "mt3"): ("ttt", "MT3"),
        ("ttt++", "ttt++"): ("learnable-loss", "TTT++"),
    }
    if table == "pacs" and (row.algorithm, row.adapter) in pacs:
        name, label = pacs[row.algorithm, row.adapter]
        return tables[name][label]["Avg."]
    if (row.algorithm, row.adapter) == ("itta", "itta"):
        return tables[table]["Ours"]["Avg."]
    if row.adapter == "source":
        return next((f["Avg."] for label, f in tables[table].items() if label.lower() == row.algorithm), None)
    return None


def short(label: str) -> str:
    """
    >>> short("art_painting→cartoon"), short("photo")
    ('A→C', 'photo')
    """
    source, arrow, target = label.partition("→")
    return f"{source[0]}→{target[0]}".upper() if arrow else label


def seeds_text(results: Results, row: Row) -> str:
    return str(max((len(c.values) for c in results.filled.targets[row.label].values()), default=0))


def training_rows(results: Results, paper: str) -> list[Row]:
    """Models as trained, and the pairs of training and adapter for which the paper has a figure."""
    own = {("ttt", "ttt"), ("ttt++", "ttt++"), ("mt3", "mt3")} | ({("itta", "itta")} if paper else set())
    return [
        row
        for row in results.rows
        if row.adapter == "source" or ((row.algorithm, row.adapter) in own and results.order(row) == "iid")
    ]


def training_table(results: Results, part: Part) -> Table:
    """Every training method: targets, mean, seeds, difference from ERM, and what it can be told from."""
    rows = training_rows(results, part.paper)
    best = best_of(results, [row for row in rows if row.adapter == "source" and not budget_of(row)])
    over, bases = dict[str, RowComparison](), []
    for steps, same in by_steps(rows).items():
        erm = results.find("erm", steps=steps)  # trained as long as the rows that are compared with it
        over |= results.compare(same, erm) if erm else {}
        bases.append(erm)
    from_best = results.compare(by_steps(rows)[""], best) if best else {}
    targets = [c for c in results.filled.layout.columns if c.label != "Avg."]
    lines = []
    for row in by_mean(results, rows):
        cells = [results.filled.cells[row.label][c.label] for c in targets]
        c, d = over.get(row.label), from_best.get(row.label)
        told = ["base" if row in bases else verdict(c) if c else "", "best" if row == best else verdict(d) if d else ""]
        line = [name_of(row), *(percent(c.mean) if c.values else c.reason for c in cells), mean_text(results, row)]
        figure = paper_figure(row, part.paper) if part.paper else None
        printed = [f"{figure.mean:.1f}" if figure else "–"] if part.paper else []
        lines.append([*line, seeds_text(results, row), with_interval(c), *told, *printed])
    heads = ["accuracy on the target, %", *(short(c.label) for c in targets), "mean", "seeds", "over ERM (95 %)"]
    return Table(part.title, [*heads, "told from ERM", "told from best", *(["paper"] if part.paper else [])], lines)


def training_sentences(results: Results) -> Iterator[str]:
    """What the table of the training methods means."""
    every = [row for row in results.rows if row.adapter == "source"]
    names = {row.label: name_of(row) for row in every}
    rows = [row for row in every if not budget_of(row)]
    erm, best = results.find("erm"), best_of(results, rows)
    if len(rows) < 2:
        yield "One method has run so far, so there is nothing to compare."
        return
    if erm:
        yield f"{told_apart(results.compare(rows, erm), names, 'ERM')}"
    if best and len(rows) > 2:
        others = results.compare([row for row in rows if row != best], best)
        below = sum(verdict(c) == "below" for c in others.values())
        yield (
            f"{names[best.label]} has the highest mean as trained. "
            f"It can be told from {below or 'none'} of {len(others)} others. "
            "The best row was picked by these figures, so its lead is too large on average."
        )
    for steps, longer in by_steps(every).items():
        base = results.find("erm", steps=steps)
        if steps and base and len(longer) > 1:
            short = {row.label: name_of(row).removesuffix(f", {steps} steps") for row in longer}
            yield f"Among trainings of {steps} steps: {told_apart(results.compare(longer, base), short, 'ERM')}"
    unfinished = [names[row.label] for row in every if not results.mean(row).values]
    if unfinished:
        yield f"These have not run on every target yet: {listed(unfinished)}."


def alpha_table(results: Results) -> Table:
    """ITTA by the weight α of the consistency loss, as trained and after its step."""
    one = next((row for row in alpha_rows(results) if row.model.get("alpha") == 1), None)
    lines = []
    for row in alpha_rows(results):
        step = next((r for r in results.rows if r.adapter == "itta" and r.model == row.model), None)
        over = with_interval(results.difference(row, one)) if one and row != one else ""
        after = mean_text(results, step) if step else "–"
        lines.append([f"{row.model['alpha']:g}", mean_text(results, row), over, after, seeds_text(results, row)])
    heads = ["α", "as trained, %", "over α = 1 (95 %)", "after ITTA's step, %", "seeds"]
    return Table("ITTA's weight α on PACS", heads, lines)


def sections(options: Options) -> Iterator[str]:
    """Yield the text of every part that has records."""
    for part in PARTS:
        results = read_results(options.records / part.file)
        if results:
            folder = part.file.removeprefix("benchmark_").removesuffix(".jsonl")
            lines = "".join(f"itta sweep {sweep} --out sweeps/{folder}\n" for sweep in part.sweeps)
            fence = f"```sh\n{lines}```\n\n" if lines else ""
            table, sentences = training_table(results, part).to_markdown(), meaning(training_sentences(results))
            yield f"## {part.title}\n\n{fence}{part.about}\n\n{table}\n\n{sentences}"
        if results and part.adapted:
            yield from adapter_sections(read_pairs(options) if part == PARTS[0] else results, part.adapted)
    alpha = read_alpha(options)
    if alpha:
        table = alpha_table(alpha)
        yield f"## {table.title}\n\n{table.to_markdown()}\n\nThe paper prints 83.4, 83.8 and 83.2 % for 0.1, 1 and 10."


def adapter_sections(results: Results | None, data: str) -> Iterator[str]:
    for order in ORDERS if results else ():
        if results and pairs_of(results, order):
            table, sentences = adapter_table(results, order, data), meaning(adapter_sentences(results, order))
            yield f"## {table.title}\n\n{table.to_markdown()}\n\n{sentences}"
    if results and all(pairs_of(results, order) for order in ORDERS):
        yield f"**{data}, over both orders.** {both_orders(results)}"
    if results:
        yield from longer_pairs(results)


def longer_pairs(results: Results) -> Iterator[str]:
    """ITTA's training with itta+ after more steps than usual, beside ERM of as many steps."""
    for steps in by_steps([row for row in results.rows if budget_of(row)]):
        erm = results.find("erm", steps=steps)
        pairs = {order: results.find("itta", "guarded itta+", order, steps) for order in ORDERS}
        told = [
            f"{mean_text(results, row)} % with {ORDERS[order]}, {with_interval(results.difference(row, erm))} over ERM"
            for order, row in pairs.items()
            if row and erm
        ]
        if told:
            yield f"**After {steps} steps**, ITTA's training + `itta+` has {'; '.join(told)} of as many steps alone."


def read_pairs(options: Options) -> Results | None:
    """The records of the adapters, in the file of PACS or in their own."""
    return read_results(options.records / "benchmark_pacs.jsonl", options.records / "benchmark_adapters.jsonl")


def read_alpha(options: Options) -> Results | None:
    """The records of other weights α, beside those of the benchmark."""
    own = options.records / "benchmark_alpha.jsonl"
    return read_results(own, options.records / "benchmark_pacs.jsonl") if own.is_file() else None


def main(options: Options) -> None:
    text = "\n\n".join(sections(options))
    if not text:
        raise InputError(f"{options.records} has no benchmark_*.jsonl: itta records join writes them.")
    write_between(options.page, "benchmark_tables", text)
    pacs, pairs = read_results(options.records / PARTS[0].file), read_pairs(options)
    if pacs:
        emoji = options.records / PARTS[1].file
        both = read_results(options.records / PARTS[0].file, emoji) if emoji.is_file() else None
        rows = claim_rows(pacs, read_results(emoji), both) | alpha_claim(read_alpha(options))
        rows |= one_source_claim(read_results(options.records / PARTS[2].file))
        replace_text(options.claims, replace_rows(options.claims.read_text(), rows))
        text += "\n\n" + "\n".join(rows.values())
    if pacs and pairs:
        draw(options.figure, pacs, pairs, options.records)
    print(text)


if __name__ == "__main__":
    run_command("benchmark_tables", main, Options(), __doc__)
