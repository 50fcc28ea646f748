"""DomainBed's run directories in and out.

In Search of Lost Domain Generalization. Gulrajani, Lopez-Paz, ICLR 2021. https://arxiv.org/abs/2007.01434

A sweep is a folder with a folder for each run. Its results.jsonl has an object for each checkpoint, with accuracies as
env{i}_in_acc and env{i}_out_acc. A file named done says that the run has ended. Our export adds our own record to each
object, under a key that DomainBed ignores, so a later import loses nothing.
"""

import hashlib
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path, PurePath
from typing import Any

from itta.errors import InputError
from itta.files import make_folder, replace_lines, replace_text
from itta.records import Record, merge, parse_line
from itta.schema import conform, parse_json
from itta.seeds import derive_seed
from itta.trial import Trial

ENVIRONMENTS: dict[str, tuple[str, ...]] = {  # in DomainBed's order: by the names of their folders
    "ColoredMNIST": ("+90%", "+80%", "-90%"),
    "RotatedMNIST": ("0", "15", "30", "45", "60", "75"),
    "VLCS": ("Caltech101", "LabelMe", "SUN09", "VOC2007"),
    "PACS": ("art_painting", "cartoon", "photo", "sketch"),
    "OfficeHome": ("Art", "Clipart", "Product", "Real World"),
    "TerraIncognita": ("location_100", "location_38", "location_43", "location_46"),
    "DomainNet": ("clipart", "infograph", "painting", "quickdraw", "real", "sketch"),
    "SVIRO": ("aclass", "escape", "hilux", "i3", "lexus", "tesla", "tiguan", "tucson", "x5", "zoe"),
}
ALIASES = {"terra_incognita": "TerraIncognita", "office_home": "OfficeHome", "domain_net": "DomainNet"}
ALGORITHMS = (  # in DomainBed's spelling
    "ERM", "Fish", "IRM", "GroupDRO", "Mixup", "MLDG", "CORAL", "MMD", "DANN", "CDANN", "MTL", "SagNet", "ARM",
    "VREx", "RSC", "SD", "ANDMask", "SANDMask", "IGA", "SelfReg", "Fishr", "TRM", "IB_ERM", "IB_IRM", "CAD",
    "CondCAD", "Transfer", "CausIRL_CORAL", "CausIRL_MMD", "EQRM", "RDM", "ADRMX", "ERMPlusPlus", "URM",
)  # fmt: skip
SMALL = ("ColoredMNIST", "RotatedMNIST")  # images of 28 pixels; DomainBed trains another network on them
DEFAULT_STEPS = 5001  # DomainBed's own default
ACCURACY = re.compile(r"env(\d+)_(\w+)_acc")
OUR_KEY = "itta"  # of our own record in each object that we write
BEST_STEP = "best-step"  # folder inside an exported sweep
BEST_STEP_NOTE = (
    f"adapted runs in the folder {BEST_STEP}, not beside the others: they were adapted before the last step, and "
    "DomainBed's oracle selection would count that step as the last. Use only its training-domain selection on them"
)


@cache  # a report calls it for every record
def dataset_name(dataset: str) -> str:
    """The name of a data set, which may be given as the path of its folder.

    >>> dataset_name("/data/PACS"), dataset_name("office_home"), dataset_name("photos/")
    ('PACS', 'OfficeHome', 'photos')
    """
    name = PurePath(dataset).name or dataset
    known = {k.lower(): k for k in ENVIRONMENTS} | ALIASES
    return known.get(name.lower(), name)


def read_domainbed(folder: Path, notes: Counter[str]) -> Iterator[Record]:
    """Yield the records of every run in a sweep's folder, or of one run's folder.

    Remarks for the user are counted in ``notes``.
    """
    patterns = ("results.jsonl", "*/results.jsonl", f"{BEST_STEP}/*/results.jsonl")
    runs = sorted(p.parent for pattern in patterns for p in folder.glob(pattern))
    if not runs:
        raise InputError(f"{folder} holds no runs of DomainBed: expected {folder}/RUN/results.jsonl.")
    logs = {p.parent for name in ("out.txt", "err.txt") for p in folder.glob(f"*/{name}")}
    if logs - {*runs}:
        notes["runs without results: they failed before their first checkpoint"] += len(logs - {*runs})
    for run in runs:
        if not (run / "done").exists():
            notes["runs without a file done: unfinished, or failed"] += 1
        with open(run / "results.jsonl", "rb") as file:
            for number, line in enumerate(file, 1):
                values = parse_line(line)
                if values is None:
                    notes["damaged lines, skipped"] += 1
                    continue
                try:
                    yield from_domainbed(values)
                except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
                    raise InputError(
                        f"{run / 'results.jsonl'}, line {number} is not a result of DomainBed ({error!r})."
                    ) from error


def from_domainbed(values: Mapping[str, Any]) -> Record:
    """Convert an object of results.jsonl; numbers of environments become names of domains."""
    if OUR_KEY in values:
        return Record.from_json(values[OUR_KEY])
    args, hparams = values["args"], values["hparams"]
    found: dict[int, dict[str, float]] = defaultdict(dict)
    logs = {}
    for key, value in values.items():
        accuracy = ACCURACY.fullmatch(key)
        if accuracy:
            found[int(accuracy[1])][accuracy[2]] = value
        elif isinstance(value, (int, float)) and key != "step":
            logs[key] = value
    names = environment_names(args["dataset"], len(found))
    small = args["dataset"] in SMALL
    trial = Trial(
        dataset=args["dataset"],
        algorithm=args["algorithm"].lower(),
        train_domains=tuple(n for i, n in enumerate(names) if i not in args["test_envs"]),
        test_domains=tuple(names[i] for i in args["test_envs"]),
        hparams_seed=args["hparams_seed"],
        trial_seed=args["trial_seed"],
        steps=args.get("steps") or DEFAULT_STEPS,
        backbone="mnist_cnn" if small else "resnet18" if hparams.get("resnet18") else "resnet50",
        weights="none" if small else "imagenet",
        image_size=28 if small else 224,
        augment=hparams.get("data_augmentation", True),
        overrides=parse_json(args.get("hparams") or "{}"),
    )
    accuracies = {names[i]: found[i] for i in sorted(found)}
    measured = {"step": values["step"], "adapter": "source", "accuracy": accuracies, "hparams": hparams, "logs": logs}
    return conform(Record, measured, trial=Trial.from_json(trial.to_json()))


def environment_names(dataset: str, n: int) -> tuple[str, ...]:
    known = ENVIRONMENTS.get(dataset, ())
    return known if len(known) == n else tuple(f"env{i}" for i in range(n))


def write_domainbed(folder: Path, records: Iterable[Record], notes: Counter[str]) -> int:
    """Write runs that DomainBed's collect_results reads, and return their number.

    Records that DomainBed cannot hold are skipped and counted in ``notes``. DomainBed knows no adapters, so an adapted
    model becomes a run of its own, with an algorithm such as "ERM+tent". DomainBed's oracle selection takes the last
    line of a run for the end of its training. A run that was adapted only at an earlier step, such as the best, would
    be counted wrongly there: it goes to the folder BEST_STEP, which DomainBed reads only if that folder is named.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} is not an empty folder: choose another --out, or delete it.")
    merged = merge(records)
    as_trained = {(r.trial.key, r.step): r for r in merged if r.adapter == "source"}
    last_step: dict[str, int] = defaultdict(int)
    for key, step in as_trained:
        last_step[key] = max(last_step[key], step)
    runs = group_by_run(merged, as_trained, notes)
    for (key, algorithm), found in runs.items():
        args = run_arguments(found[0].trial, algorithm)
        place = folder
        if found[-1].step < last_step[key]:
            place = folder / BEST_STEP
            notes[BEST_STEP_NOTE] += 1
        if (place / run_name(args)).exists():
            notes["runs that differ in what DomainBed does not know, such as image size: it will mix them"] += 1
            args["itta_trial"] = key
        run = place / run_name(args)
        make_folder(run)
        lines = (to_domainbed(r, args, as_trained[key, r.step]) for r in found)
        replace_lines(run / "results.jsonl", (json.dumps(line, sort_keys=True) + "\n" for line in lines))
        if last_step[key] >= found[0].trial.steps - 1:  # DomainBed counts steps from 0
            replace_text(run / "done", "done")
    return len(runs)


def group_by_run(
    merged: Sequence[Record], as_trained: Mapping[tuple[str, int], Record], notes: Counter[str]
) -> dict[tuple[str, str], list[Record]]:
    """The records of each run of DomainBed, by the key of the trial and the algorithm; in the order of their steps."""
    runs: dict[tuple[str, str], list[Record]] = defaultdict(list)
    settings: dict[tuple[str, str], list[Mapping[str, Any]]] = defaultdict(list)
    for r in merged:
        settings[r.trial.key, r.adapter].append(r.adapter_hparams)
    for r in sorted(merged, key=lambda r: r.step):
        reason = reason_to_skip(r, as_trained.get((r.trial.key, r.step)))
        if reason:
            notes[f"records left out: {reason}"] += 1
            continue
        if dataset_name(r.trial.dataset) not in ENVIRONMENTS:
            notes[f"records of {dataset_name(r.trial.dataset)!r}: DomainBed's tables will not show this data set"] += 1
        runs[r.trial.key, run_algorithm(r, settings[r.trial.key, r.adapter])].append(r)
    return runs


def reason_to_skip(r: Record, as_trained: Record | None) -> str:
    """Why DomainBed cannot hold a record; empty if it can."""
    if as_trained is None:
        return f"no record of the model before adaptation at the step of {r.adapter!r}"
    if any("out" not in as_trained.accuracy.get(d, {}) for d in r.trial.train_domains):
        return "no accuracy on the held-out images of every source domain"
    if any(not {"in", "out"} <= r.accuracy.get(d, {}).keys() for d in r.trial.test_domains):
        return f"{r.adapter!r} was not measured on the splits in and out of the target, only on the whole"
    known = ENVIRONMENTS.get(dataset_name(r.trial.dataset))
    if known and {*known} != {*r.trial.train_domains, *r.trial.test_domains}:
        return f"the trial does not cover the domains of {dataset_name(r.trial.dataset)}"
    return ""


def run_algorithm(r: Record, settings: Sequence[Mapping[str, Any]]) -> str:
    """DomainBed's spelling of the algorithm, then the adapter and those of its settings that differ in the trial."""
    spelling = domainbed_spelling(r.trial.algorithm)
    if r.adapter == "source":
        return spelling
    differing = [k for k, v in r.adapter_hparams.items() if any(other.get(k) != v for other in settings)]
    return f"{spelling}+{r.adapter}" + "".join(f" {k}={r.adapter_hparams[k]}" for k in differing)


def domainbed_spelling(algorithm: str) -> str:
    """DomainBed's spelling of an algorithm's name; ours if DomainBed does not have the algorithm."""
    return {name.lower(): name for name in ALGORITHMS}.get(algorithm, algorithm)


def run_seed(dataset: str, algorithm: str, test_envs: Sequence[int], hparams_seed: int, trial_seed: int) -> int:
    """The seed that a sweep of DomainBed gives to a run.

    >>> run_seed("data/VLCS", "erm", [1, 2], 1, 0)  # a run of DomainBed's own test data
    360234358
    """
    return derive_seed(dataset_name(dataset), domainbed_spelling(algorithm), list(test_envs), hparams_seed, trial_seed)


def environment_numbers(trial: Trial) -> dict[str, int]:
    """The number that DomainBed gives to each domain."""
    names = ENVIRONMENTS.get(dataset_name(trial.dataset)) or sorted({*trial.train_domains, *trial.test_domains})
    return {name: i for i, name in enumerate(names)}


def run_arguments(trial: Trial, algorithm: str) -> dict[str, Any]:
    """The arguments that a sweep of DomainBed passes to a run; the folder of the run is named after them."""
    where = environment_numbers(trial)
    dataset, test_envs = dataset_name(trial.dataset), sorted(where[d] for d in trial.test_domains)
    args = {
        "dataset": dataset,
        "algorithm": algorithm,
        "test_envs": test_envs,
        "holdout_fraction": 0.2,
        "hparams_seed": trial.hparams_seed,
        "data_dir": "",
        "task": "domain_generalization",
        "trial_seed": trial.trial_seed,
        "seed": run_seed(dataset, algorithm, test_envs, trial.hparams_seed, trial.trial_seed),
        "steps": trial.steps,
    }
    return args | ({"hparams": json.dumps(trial.overrides, sort_keys=True)} if trial.overrides else {})


def run_name(args: Mapping[str, Any]) -> str:
    """The name of a run's folder.

    >>> args = dict(dataset="VLCS", algorithm="ERM", test_envs=[1, 2], hparams_seed=1, trial_seed=0, seed=360234358)
    >>> args |= dict(data_dir="/checkpoint/dlp/datasets_new", task="domain_generalization", steps=1001)
    >>> args |= dict(holdout_fraction=0.2)
    >>> run_name(args)  # the folder of a run in DomainBed's own test data
    '0657090f9a83ff76efe083a104fde93a'
    """
    return hashlib.md5(json.dumps(args, sort_keys=True).encode(), usedforsecurity=False).hexdigest()


def to_domainbed(r: Record, args: Mapping[str, Any], as_trained: Record) -> dict[str, Any]:
    """Make an object of results.jsonl. Source domains have the accuracy of the model as trained."""
    where = environment_numbers(r.trial)
    accuracy = {**{d: as_trained.accuracy[d] for d in r.trial.train_domains}, **r.accuracy}
    values: dict[str, Any] = {"epoch": 0.0, "step_time": 0.0, **r.logs}
    for domain in where.keys() & accuracy.keys():
        for split in accuracy[domain].keys() - {"all"}:
            values[f"env{where[domain]}_{split}_acc"] = accuracy[domain][split]
    return {**values, "step": r.step, "hparams": dict(r.hparams), "args": dict(args), OUR_KEY: r.to_json()}
