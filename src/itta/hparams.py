"""Hyper-parameters: frozen dataclasses with a default, a search range and a line of meaning for each field.

A random search draws each value from its own generator, seeded by the trial and the field's name. So a new field
changes no draw of the other fields. Seeds, generators and ranges are DomainBed's, so the draws equal DomainBed's to the
last digit.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import numpy as np

from itta.errors import InputError, unknown
from itta.seeds import derive_seed

Regime = Literal["large", "small", "domainnet"]  # 224-pixel sets, 28-pixel sets, DomainNet
T = TypeVar("T")
MOST_WHOLE = 10**9
MOST_LAYERS = 100
LEAST = {"supports": -1}  # -1: all; no other number of ours is below 0


@dataclasses.dataclass(frozen=True)
class Draw:
    """A search range: call it with a generator to draw a value. ``text`` describes the distribution."""

    text: str
    draw: Callable[[np.random.RandomState], Any]

    def __call__(self, r: np.random.RandomState) -> Any:
        return self.draw(r)


def uniform(low: float, high: float, whole: bool = False) -> Draw:
    """Return the range U(low, high), rounded down to a whole number if ``whole`` is set."""
    return drawn_number(f"U({low:g}, {high:g})", lambda r: r.uniform(low, high), whole)


def power(base: float, low: float, high: float, whole: bool = False) -> Draw:
    """Return the range base^U(low, high), rounded down to a whole number if ``whole`` is set.

    >>> power(2, 3, 5.5, whole=True).text
    'int 2^U(3, 5.5)'
    """
    return drawn_number(f"{base:g}^U({low:g}, {high:g})", lambda r: base ** r.uniform(low, high), whole)


def drawn_number(text: str, draw: Callable[[np.random.RandomState], float], whole: bool) -> Draw:
    return Draw(f"int {text}", lambda r: int(draw(r))) if whole else Draw(text, draw)


def choice(*values: Any) -> Draw:
    """Return a range of equally likely values."""
    # .item(): records are JSON, which has no NumPy values
    return Draw(f"one of {', '.join(map(str, values))}", lambda r: r.choice(values).item())


def hp(
    default: Any,
    doc: str,
    search: Draw | None = None,
    drawn_as: str = "",
    later: bool = False,
    **regimes: tuple[Any, Draw | None],
) -> Any:
    """Declare a field. ``small=(default, search)`` or ``domainnet=…`` declares a regime that differs.

    ``drawn_as`` is DomainBed's name of the field, if Python does not allow that name. It seeds the draw. ``later``: the
    field is younger than published records, so its default is not recorded, and old and new records agree.
    """
    metadata = {"doc": doc, "search": search, "drawn_as": drawn_as, "later": later, "regimes": regimes}
    return dataclasses.field(default=default, metadata=metadata)


def recorded(hparams: Any) -> dict[str, Any]:
    """Return the values by name, as records have them."""
    values, younger = dataclasses.asdict(hparams), later_defaults(type(hparams))
    return {name: value for name, value in values.items() if name not in younger or value != younger[name]}


def later_defaults(cls: Any) -> dict[str, Any]:
    """Return the fields that records leave out at their defaults, with these."""
    return {f.name: f.default for f in fields(cls) if f.metadata.get("later")}


def default(cls: type[T], regime: Regime = "large", **overrides: Any) -> T:
    """Return the defaults of a regime (DomainBed's hparams seed 0), with the overrides."""
    values = {f.name: f.metadata["regimes"].get(regime, (f.default,))[0] for f in fields(cls)}
    return override(cls(**values), overrides)


def sample(cls: type[T], hparams_seed: int, trial_seed: int = 0, regime: Regime = "large", **overrides: Any) -> T:
    """Draw values as DomainBed does. Seed 0 gives the defaults, and a field without a range keeps its default."""
    if hparams_seed == 0:
        return default(cls, regime, **overrides)
    seed = derive_seed(hparams_seed, trial_seed)
    values = {}
    for f in fields(cls):
        value, search = f.metadata["regimes"].get(regime, (f.default, f.metadata["search"]))
        name = f.metadata["drawn_as"] or f.name
        values[f.name] = search(np.random.RandomState(derive_seed(seed, name))) if search else value
    return override(cls(**values), overrides)


def override(hparams: T, overrides: Mapping[str, Any]) -> T:
    """Replace fields by name. A text is converted to the field's type, so values may come from a command line."""
    hints = get_type_hints(type(hparams))
    check_names(type(hparams), overrides)
    values = {name: parse(name, value, hints[name]) for name, value in overrides.items()}
    return dataclasses.replace(hparams, **values)  # type: ignore[type-var]


def check_names(cls: Any, names: Iterable[str]) -> None:
    """Refuse a name that is not a field."""
    known = [f.name for f in fields(cls)]
    for name in names:
        if name not in known:
            raise unknown("hyper-parameter", name, known)


def parse(name: str, value: Any, hint: Any) -> Any:
    """Check a value against its type, and convert a text to that type.

    >>> parse("steps", "3", int), parse("blocks", "layer3,layer4", tuple[str, ...]), parse("episodic", "yes", bool)
    (3, ('layer3', 'layer4'), True)
    """
    if get_origin(hint) is Literal:
        if not isinstance(value, str) or value not in get_args(hint):
            raise unknown(f"value for {name}:", str(value), [str(v) for v in get_args(hint)])
        return value
    if get_origin(hint) is tuple:
        return parse_list(name, value, get_args(hint)[0])
    if hint is bool:
        return parse_bool(name, value)
    if hint in (int, float):
        return parse_number(name, value, hint)
    if not isinstance(value, hint):
        raise InputError(f"{name} must be of type {hint.__name__}, got {value!r}.")
    return value


def parse_list(name: str, value: Any, kind: type) -> tuple[Any, ...]:
    """Read a list of names or numbers; the entries of a dictionary become names.

    >>> parse_list("stays", "0.5,0.95", float), parse_list("blocks", ("layer3",), str)
    ((0.5, 0.95), ('layer3',))
    >>> parse_list("frequencies", {"dog": 31, "cat": 12}, str)
    ('dog:31', 'cat:12')
    """
    if isinstance(value, Mapping):
        value = tuple(f"{name}:{of}" for name, of in value.items())
    if isinstance(value, str):
        value = tuple(v for v in value.split(",") if v)
    if kind in (int, float) and isinstance(value, (tuple, list)):
        return tuple(parse_number(name, v, kind) for v in value)
    if not isinstance(value, (tuple, list)) or not all(isinstance(v, str) for v in value):
        raise InputError(f"{name} must be names, got {value!r:.80}.")
    return tuple(value)


def parse_bool(name: str, value: Any) -> bool:
    words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    if isinstance(value, bool):
        return value
    if not isinstance(value, str) or value.lower() not in words:
        raise InputError(f"{name} must be true or false, got {value!r:.80}.")
    return words[value.lower()]


def parse_number(name: str, value: Any, hint: type[int] | type[float]) -> float:
    """Read a number of a hyper-parameter.

    >>> parse_number("lr", "1e-4", float), parse_number("steps", "3", int)
    (0.0001, 3)
    """
    try:
        if isinstance(value, bool) or not isinstance(value, (str, int, float, np.number)):
            raise ValueError("not a number")
        read = hint(value)
        if hint is int and read != float(value):
            raise ValueError("the value has a fraction")
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{name} must be of type {hint.__name__}, got {value!r:.80}.") from None
    if hint is int and read > (most := MOST_LAYERS if name.endswith("depth") else MOST_WHOLE):
        raise InputError(f"{name} must be at most {most:,}, got {value!r:.80}.")
    return read


def check_numbers(hparams: Any) -> None:
    """Refuse numbers that are not finite, or below 0."""
    for f in fields(type(hparams)):
        value, least = getattr(hparams, f.name), LEAST.get(f.name, 0)
        if isinstance(value, (int, float)) and not (least <= value < float("inf")):
            raise InputError(f"{f.name} must be a finite number, at least {least}, got {value!r}.")


@contextmanager
def sensible_numbers(hparams: Any) -> Iterator[None]:
    """Check the numbers of hyper-parameters after the block that builds their method: its own messages say more."""
    try:
        yield
    except InputError:
        raise
    except Exception:  # torch refuses a learning rate below 0 in its own words
        check_numbers(hparams)
        raise
    check_numbers(hparams)


def parse_settings(settings: Sequence[str]) -> dict[str, Any]:
    """Split texts of the form name=value.

    >>> parse_settings(["alpha=0.5", "lr=1e-4"])
    {'alpha': '0.5', 'lr': '1e-4'}
    """
    pairs = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or not name:
            raise InputError(f"a setting is written name=value, got {setting!r}.")
        pairs[name] = value
    return pairs


def fields(cls: Any) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(cls)
