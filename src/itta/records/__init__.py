"""Records: the measurements of runs, one JSON object per line, only ever appended."""

import json
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from itta.errors import InputError, InputWarning
from itta.files import append_text, lock_for_writing, refuse_pipe, replace_lines
from itta.schema import MAX_BYTES, Count, Name, Share, check_depth, check_schema, conform, numbers_of, parse_json
from itta.settings import Precision
from itta.trial import Trial

__all__ = [
    "RECORDS", "SCHEMA", "STEPS", "Record", "append", "append_lines", "keep_until", "merge", "parse_line",
    "read", "read_lines", "read_steps", "write_all",
]  # fmt: skip

RECORDS = "records.jsonl"  # in a run's folder: a record for each evaluation
STEPS = "steps.jsonl"  # in a run's folder: the logs of each training step
SCHEMA = 3  # 2 added calibration, needs and stream; 3 estimate, device and precision; older records lack them


@dataclass(frozen=True)
class Record:
    """One evaluation of a model, as trained or adapted."""

    trial: Trial
    step: Count
    adapter: Name  # "source": the model as trained
    accuracy: Mapping[str, Mapping[str, Share]]  # domain -> split ("in", "out", "all") -> share of correct answers
    hparams: Mapping[str, Any] = field(default_factory=dict)
    adapter_hparams: Mapping[str, Any] = field(default_factory=dict)
    logs: Mapping[str, float] = field(default_factory=dict)
    calibration: Mapping[str, Mapping[str, Share]] = field(default_factory=dict)  # like accuracy: calibration error
    needs: Mapping[str, Any] = field(default_factory=dict)  # the adapter's needs, and the part that it changes
    stream: Mapping[str, Any] = field(default_factory=dict)  # the order in which the images arrived
    estimate: Mapping[str, Share] = field(default_factory=dict)  # without labels: "accuracy", and its "low" and "high"
    device: str = "cpu"  # that computed, by kind and name; older records are from a CPU
    precision: Precision = "float32"  # of the networks, as they were measured

    def to_json(self) -> dict[str, Any]:
        return {"schema": SCHEMA} | asdict(self) | {"trial": self.trial.to_json()}

    @staticmethod
    def from_json(values: Mapping[str, Any], trial: Trial | None = None) -> "Record":
        """Read the object of a line; ``trial`` is its trial if the caller has read that already."""
        check_schema(values, SCHEMA)
        if "trial" not in values:
            raise InputError("it names no trial")
        rest = {k: v for k, v in values.items() if k not in ("schema", "trial")}
        return conform(Record, rest, trial=trial or Trial.from_json(values["trial"]))


def append(path: Path, record: Record) -> None:
    """Append a record to a file, and flush it to the disk."""
    append_lines(path, [record.to_json()])


def append_lines(path: Path, values: Sequence[Mapping[str, Any]]) -> None:
    """Append a line of JSON for each object, and flush them to the disk."""
    append_text(path, "".join(json.dumps(v) + "\n" for v in values))


def read(path: Path, damaged: list[int] | None = None) -> Iterator[Record]:
    """Yield the records of a file. A last line that a crash cut off is ignored.

    Other lines that are not JSON are skipped. Their numbers go to ``damaged``; without it, a warning counts them.
    """
    skipped: list[int] = [] if damaged is None else damaged
    last: tuple[Any, Trial | None] = (None, None)  # the lines of a run share one trial
    for number, values in numbered_lines(path):
        if values is None:
            skipped.append(number)
            continue
        try:
            record = Record.from_json(values, last[1] if last[0] == values.get("trial") else None)
        except InputError as error:
            if "update itta" in str(error):
                raise InputError(f"{path}, line {number}: {error}") from None
            raise InputError(
                f"{path}, line {number} is not a record of this program ({error}): delete the line."
            ) from None
        last = values["trial"], record.trial
        yield record
    if skipped and damaged is None:
        warnings.warn(f"{path}: {len(skipped)} damaged lines were skipped.", InputWarning, stacklevel=2)


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file with one JSON object per line; skip damaged lines and one that a crash cut off."""
    return (values for _, values in numbered_lines(path) if values is not None)


def read_steps(path: Path) -> Iterator[dict[str, float]]:
    """Yield the logs of training steps: finite numbers by name. Lines without a step are skipped."""
    return (numbers for values in read_lines(path) if "step" in (numbers := numbers_of(values)))


def numbered_lines(path: Path) -> Iterator[tuple[int, dict[str, Any] | None]]:
    refuse_pipe(path)
    with open(path, "rb") as file:
        number = 0
        while line := file.readline(MAX_BYTES):
            number += 1
            if line.endswith(b"\n"):
                yield number, parse_line(line)
            elif len(line) == MAX_BYTES:
                raise InputError(f"{path}, line {number} is longer than {MAX_BYTES / 2**20:g} MB: it is not a record.")


def parse_line(line: bytes) -> dict[str, Any] | None:
    """Return the object in a line, or None if the line is damaged."""
    try:
        values = parse_json(line)
    except InputError:
        if not any(word in line for word in (b"NaN", b"Infinity")):
            return None
        values = with_non_finite(line)
    return values if isinstance(values, dict) else None


def with_non_finite(line: bytes) -> Any:
    """Parse a line with NaN or Infinity, which logs of other programs have and JSON has not."""
    try:
        values = json.loads(line)
        json.dumps(values, ensure_ascii=False).encode()  # a lone surrogate cannot be written
        check_depth(values, line)
    except (ValueError, RecursionError):
        return None
    return values


def merge(records: Iterable[Record]) -> list[Record]:
    """Join the records of the same trial, step, adapter, settings, stream, device and precision into one.

    If two of them measured the same thing, the later one counts. Records of two devices stay apart.
    """
    merged: dict[tuple[str, int, str, str], Record] = {}
    for r in records:
        key = (r.trial.key, r.step, r.adapter, as_text(r))
        merged[key] = join_records(merged[key], r) if key in merged else r
    return list(merged.values())


def as_text(r: Record) -> str:
    """Return how a record was measured, as text that is equal only if all of it is."""
    return json.dumps([r.adapter_hparams, r.stream, r.device, r.precision], sort_keys=True)


def join_records(a: Record, b: Record) -> Record:
    return replace(
        b,
        accuracy=join_domains(a.accuracy, b.accuracy),
        calibration=join_domains(a.calibration, b.calibration),
        hparams={**a.hparams, **b.hparams},
        logs={**a.logs, **b.logs},
    )


def join_domains(
    a: Mapping[str, Mapping[str, float]], b: Mapping[str, Mapping[str, float]]
) -> dict[str, dict[str, float]]:
    return {domain: {**a.get(domain, {}), **b.get(domain, {})} for domain in dict.fromkeys([*a, *b])}


def keep_until(path: Path, step: int) -> None:
    """Delete the lines of later steps, so that a run can resume from that step."""
    if not path.exists():
        return
    with lock_for_writing(path):
        replace_lines(path, [json.dumps(v) + "\n" for v in read_lines(path) if step_of(path, v) <= step])


def step_of(path: Path, values: Mapping[str, Any]) -> int:
    """Return the step of a line of a run."""
    step = values.get("step")
    if not isinstance(step, int) or isinstance(step, bool):
        raise InputError(
            f"{path} has a line without a step, so the run cannot resume: delete the line that begins "
            f"{json.dumps(values)[:60]}, or choose another --out."
        )
    return step


def write_all(path: Path, records: Iterable[Record]) -> None:
    """Write a whole file of records at once."""
    replace_lines(path, (json.dumps(r.to_json()) + "\n" for r in records))
