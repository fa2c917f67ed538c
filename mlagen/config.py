"""`mlagen.toml`: which kernels to build, and how. Unknown keys are errors that name the nearest one."""

from __future__ import annotations

import difflib
import itertools
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from mlagen import heuristics
from mlagen.demand import Demand, arches, check, measured
from mlagen.errors import SpecError
from mlagen.model import ModelShape, model_of, read_model
from mlagen.shipped import preset, presets
from mlagen.spec import Arch, DType, KernelSpec, Tuning

FILE = "mlagen.toml"
_AXES = ("arch", "dtype", "h_q", "page_size", "max_split", "cta_group")
_KEYS: dict[str, tuple[str, ...]] = {
    "": ("build", "presets", "kernels", "matrix", "model"),
    "build": ("jobs", "output"),
    "matrix": (*_AXES, "include", "exclude", "tuning"),
    "model": ("config", "preset", "tp", "page_size", "mtp", "arch", "dtype"),
}


@dataclass(frozen=True, slots=True)
class BuildConfig:
    """A validated file.

    Attributes:
        specs: kernels, each once, in the order of the file.
        jobs: compiler processes, None for the default.
        output: bundle to write, None for the cache alone; relative to the file.
        models: shape of each `[[model]]`, for reports.
    """

    specs: tuple[KernelSpec, ...]
    jobs: int | None = None
    output: Path | None = None
    models: tuple[ModelShape, ...] = ()


def read_config(path: Path) -> BuildConfig:
    """The configuration in a file.

    Raises:
        SpecError: the file cannot be read, is not TOML, or something in it is wrong; the message has the
            place.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise SpecError(f"{path} cannot be read: {error.strerror}") from error
    try:
        return config_of(tomllib.loads(text), where=path.name, folder=path.absolute().parent)
    except tomllib.TOMLDecodeError as error:
        raise SpecError(f"{path} is not TOML: {error}") from error


def config_of(data: Mapping[str, Any], *, where: str = "config", folder: Path | None = None) -> BuildConfig:
    """The configuration in plain values, as they stand in a file.

    Args:
        data: values.
        where: name of the source, for messages.
        folder: what relative paths start from; the current folder if absent.

    Raises:
        SpecError: something in it is wrong.
    """
    base = folder or Path()
    _known(data, "", where)
    build = _table(data.get("build", {}), f"{where}: build")
    _known(build, "build", f"{where}: build")
    specs: list[KernelSpec] = []
    for name in _texts(data.get("presets", []), f"{where}: presets"):
        specs += preset(name).specs()
    from mlagen.resolve import resolve

    specs += [resolve(name) for name in _texts(data.get("kernels", []), f"{where}: kernels")]
    for place, row in _rows(data, "matrix", where):
        specs += _matrix(row, place)
    models = []
    for place, row in _rows(data, "model", where):
        demand = _demand(row, place, base)
        models.append(demand.model)
        specs += demand.specs()
    if not specs:
        raise SpecError(f"{where}: no kernels; give presets, kernels, [[matrix]] or [[model]]")
    output = build.get("output")
    if output is not None and not isinstance(output, str):
        raise SpecError(f"{where}: build.output={output!r}; a path is needed")
    return BuildConfig(
        specs=tuple(dict.fromkeys(specs)),
        jobs=None if "jobs" not in build else _number(build["jobs"], f"{where}: build.jobs", 1),
        output=None if output is None else base / output,
        models=tuple(models),
    )


def enumerate_specs(config: Mapping[str, Any] | str | Path, **demand: Any) -> tuple[KernelSpec, ...]:
    """The kernels that a configuration stands for. Nothing is compiled.

    Args:
        config: a path of an `mlagen.toml`, of a Hugging Face `config.json` or of its folder; the name of a
            preset; or the values of either file.
        demand: for a model or a preset: tp, page_size, mtp, arch, dtype as in `[[model]]`.

    Raises:
        SpecError: something in it is wrong.
    """
    if isinstance(config, Mapping):
        if not any(key in config for key in _KEYS[""]):
            return _demand(demand, "arguments", Path(), model_of(config)).specs()
        _no_more(demand)
        return config_of(config).specs
    if str(config) in presets():
        return _demand({**demand, "preset": str(config)}, "arguments", Path()).specs()
    path = Path(config)
    if path.suffix == ".toml":
        _no_more(demand)
        return read_config(path).specs
    if not path.exists():
        known = ", ".join(presets())
        raise SpecError(f"{config!s} is neither a file nor a preset. Presets: {known}")
    return _demand(demand, "arguments", Path(), read_model(path)).specs()


def _no_more(demand: Mapping[str, Any]) -> None:
    if demand:
        raise SpecError(f"{', '.join(demand)}: only for a model or a preset; an {FILE} says it all itself")


def _demand(row: Mapping[str, Any], place: str, base: Path, model: ModelShape | None = None) -> Demand:
    _known(row, "model", place)
    given = [key for key in ("config", "preset") if key in row]
    if len(given) + (model is not None) != 1:
        raise SpecError(f"{place}: exactly one of config and preset is needed, {len(given)} are given")
    sizes: Sequence[int] = (1,)
    if "config" in row:
        model = read_model(base / _text(row["config"], f"{place}.config"))
    elif "preset" in row:
        known = preset(_text(row["preset"], f"{place}.preset"))
        model, sizes = known.model, known.tp
    assert model is not None  # noqa: S101 - counted above
    dtype = row.get("dtype")
    return Demand(
        model=model,
        tp=tuple(_numbers(row.get("tp", sizes), f"{place}.tp")),
        page_size=_number(row.get("page_size", 64), f"{place}.page_size", 1),
        mtp=_number(row.get("mtp", 0), f"{place}.mtp", 0),
        arch=arches(_texts(row.get("arch", []), f"{place}.arch")),
        dtype=None if dtype is None else _dtype(dtype, f"{place}.dtype"),
    )


def _matrix(row: Mapping[str, Any], place: str) -> list[KernelSpec]:
    """All combinations of the axes, without `exclude`, with `include`."""
    _known(row, "matrix", place)
    axes = {axis: _many(row[axis]) for axis in _AXES if axis in row}
    combinations = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    if not axes:
        combinations = []
    out = [_part(item, f"{place}.exclude[{n}]") for n, item in enumerate(_list(row, "exclude", place))]
    kept = [item for item in combinations if not any(_matches(item, other) for other in out)]
    first = {axis: values[0] for axis, values in axes.items() if values}
    more = [_part(item, f"{place}.include[{n}]") for n, item in enumerate(_list(row, "include", place))]
    kept += [{**first, **item} for item in more]
    tuning = _tuning(row.get("tuning", {}), f"{place}.tuning")
    return [spec for item in kept for spec in _specs_of(item, tuning, place)]


def _specs_of(item: Mapping[str, Any], tuning: Mapping[str, int], place: str) -> list[KernelSpec]:
    """One combination; what it leaves open is what a call would get."""
    if "h_q" not in item:
        raise SpecError(f"{place}: h_q is needed, a number of query heads or a list of them")
    dtype = _dtype(item.get("dtype", "bf16"), f"{place}.dtype")
    page, heads = item.get("page_size", 64), item["h_q"]
    found = []
    for arch in arches([item["arch"]]) if "arch" in item else measured():
        check(arch, dtype, heads, page)
        try:
            spec = heuristics.pick(arch, "", dtype, heads, page).spec
        except SpecError:
            if not {"max_split", "cta_group"} <= item.keys():
                raise
            spec = KernelSpec(arch, dtype, dtype, heads, page, item["max_split"], item["cta_group"])
        changes = {axis: item[axis] for axis in ("max_split", "cta_group") if axis in item}
        found.append(replace(spec, **changes, tuning=replace(spec.tuning, **tuning)))
    return found


def _tuning(value: Any, place: str) -> dict[str, int]:
    table = _table(value, place)
    names = [item.name for item in fields(Tuning)]
    for key in table:
        if key not in names:
            raise SpecError(f"{place}: no key {key!r}.{_nearest(key, names)}")
    return {key: _number(item, f"{place}.{key}", 0) for key, item in table.items()}


def _matches(item: Mapping[str, Any], part: Mapping[str, Any]) -> bool:
    return all(axis in item and item[axis] in _many(value) for axis, value in part.items())


def _part(value: Any, place: str) -> Mapping[str, Any]:
    table = _table(value, place)
    for key in table:
        if key not in _AXES:
            raise SpecError(f"{place}: no key {key!r}.{_nearest(key, _AXES)}")
    return table


def _known(data: Mapping[str, Any], kind: str, place: str) -> None:
    for key in data:
        if key not in _KEYS[kind]:
            raise SpecError(f"{place}: no key {key!r}.{_nearest(key, _KEYS[kind])}")


def _nearest(key: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(key, known, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return f"{hint} Keys: {', '.join(known)}"


def _rows(data: Mapping[str, Any], key: str, where: str) -> list[tuple[str, Mapping[str, Any]]]:
    rows = data.get(key, [])
    if not isinstance(rows, list):
        raise SpecError(f"{where}: {key} is a table; write [[{key}]], so that there can be several")
    return [(f"{where}: {key}[{n}]", _table(row, f"{where}: {key}[{n}]")) for n, row in enumerate(rows)]


def _table(value: Any, place: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise SpecError(f"{place}={value!r}; a table is needed")
    return value


def _list(row: Mapping[str, Any], key: str, place: str) -> list[Any]:
    value = row.get(key, [])
    if not isinstance(value, list):
        raise SpecError(f"{place}.{key}={value!r}; a list of tables is needed")
    return value


def _many(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _text(value: Any, place: str) -> str:
    if not isinstance(value, str):
        raise SpecError(f"{place}={value!r}; a text is needed")
    return value


def _texts(value: Any, place: str) -> list[str]:
    return [_text(str(item) if isinstance(item, Arch) else item, place) for item in _many(value)]


def _number(value: Any, place: str, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise SpecError(f"{place}={value!r}; a whole number of at least {least} is needed")
    return value


def _numbers(value: Any, place: str) -> list[int]:
    return [_number(item, place, 1) for item in _many(value)]


def _dtype(value: Any, place: str) -> DType:
    try:
        return DType(value)
    except ValueError:
        choices = ", ".join(item.value for item in DType)
        raise SpecError(f"{place}={value!r} is not known. Choices: {choices}") from None
