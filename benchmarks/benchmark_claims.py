"""The rows of the page of the paper's claims that the benchmark decides, as sentences computed from its records."""

from benchmarks.benchmark_results import Results, name_of, signed, with_interval
from itta.metrics.accuracy import percent
from itta.metrics.significance import RowComparison
from itta.report.comparison import verdict
from itta.report.layouts import Row

COMMAND = "`python -m benchmarks.benchmark_tables`"
PAGE = "[the benchmark](benchmark.md)"
BETTER = "ITTA trains a better model than ERM"
LEARNED = "The learned loss trains a better model than plain consistency"
ALPHA = "α between 0.1 and 10 works, 1 is best"
ONE_SOURCE = "From one source domain too, ITTA trains a better model"
AHEAD = "ITTA is ahead of 20 other methods"
MANY = 20


def claim_rows(pacs: Results, emoji: Results | None, both: Results | None) -> dict[str, str]:
    """The rows of the table of claims, by claim. ``both`` has the records of PACS and EmojiStyles together."""
    found = {BETTER: paired(pacs, emoji, both, "erm"), LEARNED: paired(pacs, emoji, both, "consistency")}
    rows = {claim: f"| {claim} | {text} | {word} | {COMMAND} |" for claim, (text, word) in found.items() if text}
    text, word = ahead_of_others(pacs)
    return rows | ({AHEAD: f"| {AHEAD} | {text} | {word} | {COMMAND} |"} if text else {})


def paired(pacs: Results, emoji: Results | None, both: Results | None, base: str) -> tuple[str, str]:
    """ITTA's training beside another one on each data set and on both, and the verdict of the most targets."""
    sets = {"PACS": pacs} | ({"EmojiStyles": emoji} if emoji else {})
    parts, last = [], None
    for name, results in sets.items():
        found = compare_pair(results, base)
        if found:
            parts.append(f"{name}: {in_words(found)}")
            last = found
    joint = compare_pair(both, base) if both and len(parts) > 1 else None
    if joint:
        p = f", p = {joint.p:.2g}" if joint.p is not None else ""
        parts.append(f"both: {in_words(joint)}{p}")
        last = joint
    return (f"{'; '.join(parts)} ({PAGE})", verdict_on(last)) if last else ("", "")


def one_source_claim(results: Results | None) -> dict[str, str]:
    """The row of the claim about one source domain, beside ERM and beside plain consistency."""
    erm = compare_pair(results, "erm")
    if erm is None:
        return {}
    plain = compare_pair(results, "consistency")
    text = f"over ERM: {in_words(erm)}" + (f"; over plain consistency: {in_words(plain)}" if plain else "")
    return {ONE_SOURCE: f"| {ONE_SOURCE} | {text} ({PAGE}) | {verdict_on(erm)} | {COMMAND} |"}


def compare_pair(results: Results | None, base: str) -> RowComparison | None:
    ours, other = (results.find("itta"), results.find(base)) if results else (None, None)
    return results.difference(ours, other) if results and ours and other else None


def in_words(c: RowComparison) -> str:
    return f"{with_interval(c)} points, {c.targets} targets, {c.pairs} pairs of trainings"


def verdict_on(c: RowComparison) -> str:
    """The verdict on a claim that a difference is positive."""
    told = verdict(c)
    if told == "above":
        return "confirmed here"
    if told == "below":
        return "not confirmed: it is behind"
    return f"{'ahead' if c.difference > 0 else 'behind'} on average, not decided"


def ahead_of_others(pacs: Results) -> tuple[str, str]:
    """How many training methods ITTA, as trained, is ahead of."""
    ours = pacs.find("itta")
    others = [row for row in usual_models(pacs) if row != ours]
    if ours is None or not others:
        return "", ""
    mine = pacs.mean(ours).mean
    behind = [row for row in others if pacs.mean(row).mean < mine]
    leads = [pacs.difference(ours, row) for row in others]
    told = {word: sum(c is not None and verdict(c) == word for c in leads) for word in ("above", "below")}
    best = max(others, key=lambda row: pacs.mean(row).mean)
    text = (
        f"As trained, ITTA ({percent(mine)} %) is ahead of {len(behind)} of {len(others)} methods on PACS; the "
        f"interval of its lead leaves out 0 for {told['above']}, and that of its lag for {told['below']}. The best "
        f"other method is {name_of(best)}, {signed(pacs.mean(best).mean - mine)} points from ITTA ({PAGE})"
    )
    if len(behind) == len(others):
        return text, "confirmed here" if told["above"] == len(others) else "ahead on average, not decided"
    if len(behind) >= MANY:
        return text, f"ahead of {len(behind)} on average, told from {told['above']}"
    return text, "not confirmed" if len(others) >= MANY else "not decided: too few methods ran"


def usual_models(results: Results) -> list[Row]:
    """Models as trained with the usual number of steps, measured on all targets."""
    found = [row for row in results.rows if row.adapter == "source" and results.mean(row).values]
    return [row for row in found if row == results.find(row.algorithm)]


def alpha_rows(results: Results) -> list[Row]:
    """ITTA as trained with each weight α, from the smallest."""
    found = [
        row for row in results.rows if row.algorithm == "itta" and row.adapter == "source" and "alpha" in row.model
    ]
    return sorted(found, key=lambda row: float(row.model["alpha"]))


def alpha_claim(results: Results | None) -> dict[str, str]:
    """The row of the claim about α, if other weights than 1 were trained."""
    rows = alpha_rows(results) if results else []
    one = next((row for row in rows if row.model["alpha"] == 1), None)
    if results is None or one is None or len(rows) < 2:
        return {}
    parts = [f"α = {row.model['alpha']:g}: {percent(results.mean(row).mean)} %" for row in rows]
    others = [(row, c) for row in rows if row != one and (c := results.difference(row, one))]
    parts += [f"α = {row.model['alpha']:g} over 1: {in_words(c)}" for row, c in others]
    best = max(rows, key=lambda row: results.mean(row).mean)
    told = [verdict(c) for _, c in others]
    word = "confirmed here" if best == one and set(told) == {"below"} else "not decided: they cannot be told apart"
    if "above" in told:
        word = "not confirmed: another weight is better"
    return {ALPHA: f"| {ALPHA} | {'; '.join(parts)} ({PAGE}) | {word} | {COMMAND} |"}
