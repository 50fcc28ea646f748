"""DomainBed's run directories in and out.

In Search of Lost Domain Generalization. Gulrajani, Lopez-Paz, ICLR 2021. https://arxiv.org/abs/2007.01434

A sweep is a folder with a folder for each run; results.jsonl in it has an object for each checkpoint, with accuracies
as env{i}_in_acc and env{i}_out_acc, and a file named done says that the run came to its end. What we write carries our
record along under a key of its own, which DomainBed does not look at, so nothing is lost on the way back.
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
from itta.files import replace_lines, replace_text
from itta.records import Record, merge, parse_line
from itta.seeds import derive_seed
from itta.trial import Trial

ENVIRONMENTS: dict[str, tuple[str, ...]] = {  # as DomainBed counts them: folders in the order of their names
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
ALGORITHMS = (  # its spelling
    "ERM", "Fish", "IRM", "GroupDRO", "Mixup", "MLDG", "CORAL", "MMD", "DANN", "CDANN", "MTL", "SagNet", "ARM",
    "VREx", "RSC", "SD", "ANDMask", "SANDMask", "IGA", "SelfReg", "Fishr", "TRM", "IB_ERM", "IB_IRM", "CAD",
    "CondCAD", "Transfer", "CausIRL_CORAL", "CausIRL_MMD", "EQRM", "RDM", "ADRMX", "ERMPlusPlus", "URM",
)  # fmt: skip
SMALL = ("ColoredMNIST", "RotatedMNIST")  # 28 pixels, a network of their own
STEPS = 5001  # of a run that does not say
ACCURACY = re.compile(r"env(\d+)_(\w+)_acc")
OURS = "itta"


@cache  # a report asks for every record
def dataset_name(dataset: str) -> str:
    """The name of a data set that may be given as a folder.

    >>> dataset_name("/data/PACS"), dataset_name("office_home"), dataset_name("photos/")
    ('PACS', 'OfficeHome', 'photos')
    """
    name = PurePath(dataset).name or dataset
    known = {k.lower(): k for k in ENVIRONMENTS} | ALIASES
    return known.get(name.lower(), name)


def read_sweep(folder: Path, told: Counter[str]) -> Iterator[Record]:
    """Yield the records of every run in a sweep's folder, or of one run; ``told`` counts what should be known."""
    runs = sorted(p.parent for p in (*folder.glob("results.jsonl"), *folder.glob("*/results.jsonl")))
    if not runs:
        raise InputError(f"{folder} holds no runs of DomainBed: expected {folder}/RUN/results.jsonl.")
    logs = {p.parent for name in ("out.txt", "err.txt") for p in folder.glob(f"*/{name}")}
    if logs - {*runs}:
        told["runs without results: they failed before their first checkpoint"] += len(logs - {*runs})
    for run in runs:
        if not (run / "done").exists():
            told["runs without a file done: unfinished, or failed"] += 1
        with open(run / "results.jsonl", "rb") as file:
            for number, line in enumerate(file, 1):
                values = parse_line(line)
                if values is None:
                    told["damaged lines, skipped"] += 1
                    continue
                try:
                    yield from_domainbed(values)
                except (KeyError, TypeError, ValueError, IndexError) as error:
                    raise InputError(
                        f"{run / 'results.jsonl'}, line {number} is not a result of DomainBed ({error!r})."
                    ) from error


def from_domainbed(values: Mapping[str, Any]) -> Record:
    """One line of results.jsonl; numbers of environments become names."""
    if OURS in values:
        return Record.from_json(values[OURS])
    args, hparams = values["args"], values["hparams"]
    found: dict[int, dict[str, float]] = defaultdict(dict)
    logs = {}
    for key, value in values.items():
        accuracy = ACCURACY.fullmatch(key)
        if accuracy:
            found[int(accuracy[1])][accuracy[2]] = value
        elif isinstance(value, (int, float)) and key != "step":
            logs[key] = value
    names = environments(args["dataset"], len(found))
    small = args["dataset"] in SMALL
    trial = Trial(
        dataset=args["dataset"],
        algorithm=args["algorithm"].lower(),
        train_domains=tuple(n for i, n in enumerate(names) if i not in args["test_envs"]),
        test_domains=tuple(names[i] for i in args["test_envs"]),
        hparams_seed=args["hparams_seed"],
        trial_seed=args["trial_seed"],
        steps=args.get("steps") or STEPS,
        backbone="mnist_cnn" if small else "resnet18" if hparams.get("resnet18") else "resnet50",
        weights="none" if small else "imagenet",
        image_size=28 if small else 224,
        augment=hparams.get("data_augmentation", True),
        overrides=json.loads(args.get("hparams") or "{}"),
    )
    accuracies = {names[i]: found[i] for i in sorted(found)}
    return Record(trial, values["step"], "source", accuracies, hparams, logs=logs)


def environments(dataset: str, n: int) -> tuple[str, ...]:
    known = ENVIRONMENTS.get(dataset, ())
    return known if len(known) == n else tuple(f"env{i}" for i in range(n))


def write_sweep(folder: Path, records: Iterable[Record], told: Counter[str]) -> int:
    """Write runs that DomainBed's collect_results reads; gives their number, and tells what had to be left out.

    An adapted model becomes a run of its own, with the algorithm "erm+tent": DomainBed has no other place for it.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} is not an empty folder: choose another --out, or delete it.")
    merged = merge(records)
    plain = {(r.trial.key, r.step): r for r in merged if r.adapter == "source"}
    runs: dict[tuple[str, str], list[Record]] = defaultdict(list)
    settings: dict[tuple[str, str], list[Mapping[str, Any]]] = defaultdict(list)
    for r in merged:
        settings[r.trial.key, r.adapter].append(r.adapter_hparams)
    for r in merged:
        why = unfit(r, plain.get((r.trial.key, r.step)))
        if why:
            told[f"left out: {why}"] += 1
            continue
        if dataset_name(r.trial.dataset) not in ENVIRONMENTS:
            told[f"DomainBed knows no data set {dataset_name(r.trial.dataset)!r}: its tables will not show it"] += 1
        runs[r.trial.key, algorithm_name(r, settings[r.trial.key, r.adapter])].append(r)
    for (_, algorithm), found in runs.items():
        found.sort(key=lambda r: r.step)
        args = arguments(found[0].trial, algorithm)
        if (folder / run_name(args)).exists():
            told["runs that differ in what DomainBed does not know, such as image size: it will mix them"] += 1
            args["itta_trial"] = found[0].trial.key
        run = folder / run_name(args)
        run.mkdir(parents=True)
        lines = (to_domainbed(r, args, plain[r.trial.key, r.step]) for r in found)
        replace_lines(run / "results.jsonl", (json.dumps(line, sort_keys=True) + "\n" for line in lines))
        if found[-1].step >= found[0].trial.steps - 1:  # DomainBed counts steps from 0
            replace_text(run / "done", "done")
    return len(runs)


def unfit(r: Record, plain: Record | None) -> str:
    """Why DomainBed has no place for a record, if it has none."""
    if plain is None:
        return f"no record of the model before adaptation beside that of {r.adapter!r}"
    if any("out" not in plain.accuracy.get(d, {}) for d in r.trial.train_domains):
        return "no accuracy on the held-out images of every source domain"
    if any(not {"in", "out"} <= r.accuracy.get(d, {}).keys() for d in r.trial.test_domains):
        return f"{r.adapter!r} was not measured on the splits in and out of the target, only on the whole"
    known = ENVIRONMENTS.get(dataset_name(r.trial.dataset))
    if known and {*known} != {*r.trial.train_domains, *r.trial.test_domains}:
        return f"the trial does not cover the domains of {dataset_name(r.trial.dataset)}"
    return ""


def algorithm_name(r: Record, settings: Sequence[Mapping[str, Any]]) -> str:
    """DomainBed's spelling of the algorithm, and the adapter with what tells its settings from others of the trial."""
    spelling = spelled(r.trial.algorithm)
    if r.adapter == "source":
        return spelling
    telling = [k for k, v in r.adapter_hparams.items() if any(other.get(k) != v for other in settings)]
    return f"{spelling}+{r.adapter}" + "".join(f" {k}={r.adapter_hparams[k]}" for k in telling)


def spelled(algorithm: str) -> str:
    """An algorithm's name as DomainBed has it; one that it has not keeps ours."""
    return {name.lower(): name for name in ALGORITHMS}.get(algorithm, algorithm)


def run_seed(dataset: str, algorithm: str, test_envs: Sequence[int], hparams_seed: int, trial_seed: int) -> int:
    """The seed that a sweep of DomainBed gives to a run.

    >>> run_seed("data/VLCS", "erm", [1, 2], 1, 0)  # as one of its test data has it
    360234358
    """
    return derive_seed(dataset_name(dataset), spelled(algorithm), list(test_envs), hparams_seed, trial_seed)


def indices(trial: Trial) -> dict[str, int]:
    """The number of each domain."""
    names = ENVIRONMENTS.get(dataset_name(trial.dataset)) or sorted({*trial.train_domains, *trial.test_domains})
    return {name: i for i, name in enumerate(names)}


def arguments(trial: Trial, algorithm: str) -> dict[str, Any]:
    """What a sweep of DomainBed passes to a run, and what names its folder."""
    where = indices(trial)
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
    """
    >>> args = dict(dataset="VLCS", algorithm="ERM", test_envs=[1, 2], hparams_seed=1, trial_seed=0, seed=360234358)
    >>> args |= dict(data_dir="/checkpoint/dlp/datasets_new", task="domain_generalization", steps=1001)
    >>> args |= dict(holdout_fraction=0.2)
    >>> run_name(args)  # as one of its test data is named
    '0657090f9a83ff76efe083a104fde93a'
    """
    return hashlib.md5(json.dumps(args, sort_keys=True).encode(), usedforsecurity=False).hexdigest()


def to_domainbed(r: Record, args: Mapping[str, Any], plain: Record) -> dict[str, Any]:
    """A line of results.jsonl; source domains have the accuracy of the model as trained, for they are never adapted."""
    where = indices(r.trial)
    accuracy = {**{d: plain.accuracy[d] for d in r.trial.train_domains}, **r.accuracy}
    values: dict[str, Any] = {"epoch": 0.0, "step_time": 0.0, **r.logs}
    for domain in where.keys() & accuracy.keys():
        for split in accuracy[domain].keys() - {"all"}:
            values[f"env{where[domain]}_{split}_acc"] = accuracy[domain][split]
    return {**values, "step": r.step, "hparams": dict(r.hparams), "args": dict(args), OURS: r.to_json()}
