"""From a kernel name to its spec, including names with a tuning hash."""

from __future__ import annotations

from mlagen.errors import SpecError
from mlagen.spec import KernelSpec, Tuning


def resolve(name: str) -> KernelSpec:
    """The spec of a name. A `_t<hash>` part is looked up in shipped tables, cache and search folders.

    Raises:
        SpecError: not a kernel name, or a tuning that is found nowhere.
    """
    try:
        return KernelSpec.from_name(name)
    except SpecError:
        if "_t" not in name:
            raise
    from mlagen.shipped import tunings

    try:
        return KernelSpec.from_name(name, tunings=tunings())
    except SpecError:
        return KernelSpec.from_name(name, tunings=_cached_tunings(name))


def _cached_tunings(name: str) -> list[Tuning]:
    """Tunings that entries of this very name record."""
    from mlagen.cache import Cache
    from mlagen.cache_entry import DamagedError, read_entry

    found = []
    for folder in Cache().names().get(name, ()):
        try:
            found.append(Tuning(**read_entry(folder, name).info["spec"]["tuning"]))
        except (OSError, DamagedError, KeyError, TypeError):
            continue
    return found
