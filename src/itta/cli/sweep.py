"""itta sweep: many trials, and how they stand."""

import math
import shlex
import sys
import time
from dataclasses import replace
from json import dumps
from pathlib import Path
from typing import Annotated, Any

from rich.console import Console
from tyro.conf import Positional, arg

from itta.cli.screen import Flags, NameValues, errors, print_json, progress_bars, say, show, typed_settings
from itta.errors import InputError
from itta.hparams import parse_settings
from itta.recipes import QUICK, find_recipe, follow
from itta.registry import look_up
from itta.report.tables import Table
from itta.settings import Adaptation, At, ComputeSettings, DataAccess, TrainSettings, check_at_least, check_threads

AdapterSettings = Annotated[tuple[str, ...], arg(metavar="ADAPTER.NAME=VALUE …")]
QueueSettings = Annotated[tuple[str, ...], arg(metavar="NAME=VALUE …")]
LONG = 300.0  # seconds: a sweep that takes longer asks first
WORDS = ("done", "running", "failed", "silent", "waiting")


def sweep(
    data: Annotated[Positional[tuple[str, ...]], arg(metavar="DATA …")],
    out: Path,
    algorithms: tuple[str, ...] = ("erm", "itta"),
    adapters: tuple[str, ...] = ("source",),
    targets: tuple[str, ...] = (),
    single_source: bool = False,
    pairs: bool = False,
    hparams_seeds: int = 1,
    trial_seeds: int = 1,
    recipe: str = "auto",
    training: Flags[TrainSettings] = QUICK,
    eval_every: int = 300,
    settings: NameValues = (),
    adapter_set: AdapterSettings = (),
    at: At = "best",
    batch_size: int = 32,
    orders: tuple[str, ...] = ("iid",),
    engine: str = "local",
    slots: int = 0,
    threads: int = 0,
    gpus: float | None = None,
    retries: int = 2,
    address: str | None = None,
    queue: QueueSettings = (),
    access: Flags[DataAccess] = DataAccess(),
    compute: Flags[ComputeSettings] = ComputeSettings(),
    keep_checkpoints: bool = False,
    stand_ins: bool = False,
    elsewhere: tuple[Path, ...] = (),
    yes: bool = False,
    dry_run: bool = False,
    json: bool = False,
) -> None:
    """Train every algorithm on every target with random hyper-parameters, and adapt each model with every adapter.

    The same command goes on where it stopped. A command with more seeds, algorithms or adapters does only the new part.
    itta sweep status DIR shows how it stands. Examples:
    itta sweep emoji --algorithms erm itta --adapters itta+ t3a --hparams-seeds 3 --out sweeps/emoji --dry-run;
    itta sweep PACS VLCS --backbone resnet18 --image-size 224 --steps 5001 --engine ray --address auto --out sweeps/all

    Args:
        data: Data sets by name (itta list datasets), folders root/domain/class/image, or manifests.
        out: Folder of the sweep; each trial has a directory in it, named by its key.
        algorithms: Training methods (itta list algorithms), or package.module:Class.
        adapters: Test-time methods (itta list adapters); source is the model as trained, which is always measured.
        targets: Domains to keep out of training, one after another. Without this flag, every domain.
        single_source: Train on each single domain and measure on the others, instead of training on all but one.
        pairs: Also leave out two domains at a time; leave-one-domain-out selection needs these runs.
        hparams_seeds: Draws of the random search; the first one is the defaults. DomainBed's protocol has 20.
        trial_seeds: Repetitions of everything, with other splits. DomainBed's protocol has 3.
        recipe: Settings that go together: quick (minutes on two cores), full (DomainBed's: 224 pixels, 5,000 steps, for
            GPUs), none (plain steps, the method's hyper-parameters), or auto: quick on CPUs, else full. The flags
            that you give replace the recipe's values. A random search has DomainBed's learning rates and batch sizes
            instead.
        eval_every: Record accuracies every this many steps.
        settings: Hyper-parameters that are not searched, name=value.
        adapter_set: Settings of the adapters.
        at: Adapt the checkpoint with the best source validation, the last one, or both.
        batch_size: Images per batch of the target's stream.
        orders: Orders of the classes in which a target's images come, one stream for each: iid (random), sorted,
            dirichlet (clusters), runs (a few images of a class at a time).
        engine: local (processes on this machine), ray (a Ray cluster), slurm (jobs of a SLURM queue).
        slots: Trials at a time; 0: up to 4 (local), as many as there is room for (ray), 50 (slurm).
        threads: CPU threads of each trial; 0 divides the machine between the slots (local), or means 1.
        gpus: GPUs of each trial. Below 1, trials share a GPU (not on slurm). Default: 1 if there are GPUs (local), 0 on
            a cluster, where trials then compute on the CPU.
        retries: How often a trial is resumed if its process dies.
        address: Address of the Ray cluster. Without this flag, Ray starts on this machine.
        queue: Settings of the SLURM queue: partition=…, account=…, timeout_min=….
        keep_checkpoints: Keep the checkpoint of each finished training, three times the size of its model.
        stand_ins: Measure stand-in targets at the end of each training, from which itta estimate learns.
        elsewhere: Files or folders with records of trials that ran elsewhere, for example on another machine: they
            count as done.
        yes: Start a long sweep without asking.
        dry_run: Count the trials and estimate the time; train nothing.
        json: Print the result as JSON.
    """
    from itta.nn.weights import digest_of
    from itta.sweep.engines import ENGINES, EngineOptions, choose_devices
    from itta.sweep.engines.local import slots_here, threads_each
    from itta.sweep.launch import LaunchSettings, check_sweep, open_sweep_data, run_sweep
    from itta.sweep.plan import Sweep
    from itta.sweep.standings import count_standings, standings

    if not data:
        raise InputError("no data: name data sets (itta list datasets), or folders root/domain/class/image.")
    look_up("engine", engine, ENGINES)
    if gpus is not None and not 0 <= gpus < math.inf:
        raise InputError(f"--gpus must be a number of at least 0, got {gpus:g}.")
    device, gpus_each = choose_devices(engine, compute.device, gpus)
    chosen = find_recipe(recipe, "cuda" if gpus_each else "cpu")
    training = follow(chosen, typed_settings(training))
    training.check()
    check_at_least(1, eval_every=eval_every, batch_size=batch_size)
    check_at_least(1, hparams_seeds=hparams_seeds, trial_seeds=trial_seeds)
    check_at_least(0, slots=slots, retries=retries)
    check_threads(threads)
    opened = open_sweep_data(data, training, access)
    weights = training.weights
    shared = training.shared() | {"weights": str(Path(weights).resolve()) if Path(weights).is_file() else weights}
    asked = Sweep(
        datasets=opened.domains,
        algorithms=tuple(dict.fromkeys(algorithms)),
        targets=targets,
        single_source=single_source,
        pairs=pairs,
        hparams_seeds=hparams_seeds,
        trial_seeds=trial_seeds,
        overrides=parse_settings(settings),
        by_method={name: chosen.hparams(name, training) for name in algorithms if hparams_seeds == 1},
        eval_every=eval_every,
        adaptation=Adaptation(tuple(dict.fromkeys(adapters)), by_adapter(adapter_set), at, batch_size, orders),
        fingerprints=opened.fingerprints,
        weights_digest=digest_of(weights),
        precision=compute.precision,
        elsewhere=tuple(str(path.resolve()) for path in elsewhere),
        **shared,
    )
    at_a_time = slots or slots_here(gpus_each) if engine == "local" else slots or None
    if dry_run:
        check_sweep(asked)
        show_standings(count_standings(standings(asked, out), at_a_time), json)
        return
    threads = threads or (threads_each(at_a_time or 1) if engine == "local" else 1)
    options = EngineOptions(slots, retries, threads, gpus_each, address, out, settings=parse_settings(queue))
    done_steps = {s.trial.key: 0 for s in standings(asked, out) if s.word != "done"}
    launch = LaunchSettings(engine, options, threads, access, keep_checkpoints, device=device, stand_ins=stand_ins)

    def run(launch: LaunchSettings) -> dict[str, str]:
        with progress_bars() as report:

            def step(name: str, done: int, total: int) -> None:
                done_steps[name] = done
                report("training steps", sum(done_steps.values()), asked.steps * len(done_steps))

            return run_sweep(asked, out, launch, step)

    failed: dict[str, str] = {}
    if len(done_steps) > 1 and not yes:
        failed = run(replace(launch, most=1))  # one trial first, to know how long all take
        if not failed:
            ask_before_long(count_standings(standings(asked, out), at_a_time), len(done_steps))
    failed |= run(launch)
    found = standings(asked, out)
    show_standings(count_standings(found, at_a_time), json)
    taken = [s for s in found if s.trial.key in failed and s.word in ("running", "done")]
    if len(failed) > len(taken):
        n = len(failed) - len(taken)
        raise InputError(f"{n} of {len(done_steps)} trials failed. Run again to resume; the others are done.")
    if taken:
        raise InputError(
            f"another command is running {len(taken)} of {len(done_steps)} trials; the others are done. "
            f"{shlex.join(['itta', 'sweep', 'status', str(out), '--watch'])} shows when they are."
        )
    if not json:
        say(f"next     {shlex.join(['itta', 'report', str(out), *map(str, elsewhere)])}")


def sweep_status(
    folder: Annotated[Positional[Path], arg(metavar="DIR")],
    watch: bool = False,
    every: float = 5.0,
    json: bool = False,
) -> None:
    """Show how a sweep stands: done, running, failed and why, waiting, and how long the rest will take.

    Examples: itta sweep status sweeps/emoji --watch; itta sweep-status sweeps/emoji --json

    Args:
        folder: The --out of an itta sweep.
        watch: Show it again and again, until nothing is left to do.
        every: Seconds between two looks.
        json: Print as JSON; with --watch, a line at each look.
    """
    from itta.sweep.plan import read_sweep
    from itta.sweep.standings import count_standings, standings

    screen = Console()
    while True:
        found = count_standings(standings(read_sweep(folder), folder))
        if watch and json:
            print(dumps(found), flush=True)
        else:
            if watch and screen.is_terminal:
                screen.clear()
            show_standings(found, json)
        if not watch or not found["running"] + found["waiting"] + found["silent"]:
            return
        time.sleep(max(0.1, every))


def ask_before_long(found: dict[str, Any], trials: int) -> None:
    """Ask before a sweep that takes long; without a terminal, refuse it."""
    from itta.sweep.standings import duration

    seconds = found["seconds_left"]
    if seconds is None or seconds <= LONG:
        return
    estimate = f"{trials} trials take about {duration(seconds)} more, measured on the first one, which is done."
    if not (sys.stdin.isatty() and errors.is_terminal):
        raise InputError(f"{estimate} Add --yes to run them, or ask for fewer seeds, algorithms or targets.")
    errors.print(f"{estimate} Go on? [y/N] ", end="", markup=False)
    if input().strip().lower() not in ("y", "yes"):
        raise InputError("the sweep was not started. The first trial is kept.")


def by_adapter(settings: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """Sort settings by their adapter.

    >>> by_adapter(("tent.lr=1e-4", "itta+.steps=2"))
    {'tent': {'lr': '1e-4'}, 'itta+': {'steps': '2'}}
    """
    found: dict[str, dict[str, Any]] = {}
    for setting in settings:
        adapter, dot, rest = setting.partition(".")
        if not dot:
            raise InputError(f"a setting of an adapter is written ADAPTER.NAME=VALUE, got {setting!r}.")
        found.setdefault(adapter, {}).update(parse_settings([rest]))
    return found


def show_standings(found: dict[str, Any], json: bool) -> None:
    """Print the counts of a sweep, its running and failed trials, and the time left."""
    if json:
        print_json(found)
        return
    from itta.sweep.standings import duration

    rows = [[name, *(str(counts.get(w, 0)) for w in WORDS)] for name, counts in found["by_algorithm"].items()]
    if len(rows) > 1:
        rows.append(["all", *(str(found[w]) for w in WORDS)])
    show(Table(f"{found['trials']} trials", ["algorithm", *WORDS], rows))
    for r in found["running_now"]:
        say(f"running  {name_of(r)}: step {r['step']} of {r['of']}{', ' + r['doing'] if r['doing'] else ''}")
    for r in found["reasons"]:
        say(f"failed   {name_of(r)}: {r['reason']}")
    for why, n in found["cannot"].items():
        say(f"cannot   {why} ({n}×)")
    if found["running"] + found["waiting"]:
        say(f"left     {duration(found['seconds_left'])}")


def name_of(r: dict[str, Any]) -> str:
    seeds = f"hparams {r['hparams_seed']}, trial {r['trial_seed']}"
    return f"{r['algorithm']}, {'+'.join(r['sources'])}→{'+'.join(r['targets'])}, {seeds} ({r['trial'][:8]})"
