"""Kernels on disk, found by content.

An entry is a folder `<root>/v1/<kernel name>/<digest>/` with the source, PTX, cubin, log and a manifest that
holds the digest of every file. It appears by one rename of a complete folder, so nobody sees half of it.
Whatever cannot be read counts as missing. Locks only save work: without them the result is the same.
"""

from __future__ import annotations

import errno
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from mlagen import settings
from mlagen.bundle_index import ManifestError, read_index
from mlagen.cache_entry import (
    MANIFEST,
    DamagedError,
    Entry,
    Root,
    is_usable,
    read_entry,
    sync_folder,
    write_synced,
)
from mlagen.cache_key import Key
from mlagen.errors import CacheError
from mlagen.lock import exclusive
from mlagen.log import logger, warn_once

# A compile takes seconds. Whoever waits longer than this compiles on its own.
LOCK_SECONDS = 120.0
GARBAGE_SECONDS = 24 * 3600.0
# Folder on Python's path below which installed bundles lie, one folder each.
INSTALLED = "mlagen_bundles"


def default_dir() -> Path:
    """The user's cache folder for mlagen."""
    given = os.environ.get("XDG_CACHE_HOME", "").strip()
    base = Path(given) if given and Path(given).is_absolute() else Path.home() / ".cache"
    return base / "mlagen"


def private_root(explicit: Path | None = None) -> Root | None:
    """The private cache: argument, then MLAGEN_CACHE_DIR, then the user's cache folder.

    The folder of the schema in it is made with mode 0700 and used only if it belongs to this user and nobody
    else can write to it: a cubin is code. Returns None, with one warning, where that cannot be had; kernels
    then live in memory.
    """
    chosen = explicit or settings.read().cache_dir
    path = chosen or default_dir()
    try:
        if chosen is None and not path.exists() and not Path.home().is_dir():
            raise PermissionError(f"the home folder {Path.home()} does not exist")
        root = Root(path, private=True)
        root.base.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = root.base.stat()
        if status.st_uid != os.geteuid():
            raise PermissionError(f"it belongs to user {status.st_uid}, this is user {os.geteuid()}")
        if status.st_mode & 0o022:
            raise PermissionError(f"others can write to it (mode {status.st_mode & 0o777:o}); chmod go-w it")
    except (OSError, RuntimeError) as error:
        warn_once(
            f"cache folder {path} cannot be used: {error}. Kernels are kept in memory only; "
            "set MLAGEN_CACHE_DIR to a folder of your own"
        )
        return None
    return root


def installed_bundles() -> tuple[Path, ...]:
    """Bundles that were installed as packages, by the order of Python's path, then by name."""
    found: list[Path] = []
    for entry in dict.fromkeys(sys.path):
        try:
            found += sorted(path for path in (Path(entry or ".") / INSTALLED).iterdir() if path.is_dir())
        except OSError:
            continue
    return tuple(path.absolute() for path in found)


def search_roots(first: tuple[Path, ...] = ()) -> tuple[Root, ...]:
    """The read-only folders: those given, those of MLAGEN_CACHE_PATH, installed bundles, in this order.

    A folder that all can write to is left out.
    """
    roots = []
    for path in dict.fromkeys((*first, *settings.read().cache_path, *installed_bundles())):
        try:
            status = path.stat()
        except OSError:
            continue
        if status.st_mode & 0o002:
            warn_once(f"search folder {path} is left out: everybody can write to it")
            continue
        roots.append(Root(path, private=False))
    return tuple(roots)


class Hit(NamedTuple):
    """An entry and the folder it came from."""

    entry: Entry
    folder: Path


class Cache:
    """Lookup, store and clean-up over the search folders and the private folder.

    Args:
        directory: private folder, in place of the setting.
        first: folders to search before all others.
    """

    def __init__(self, directory: Path | None = None, *, first: tuple[Path, ...] = ()) -> None:
        self.private = private_root(directory)
        self.search = search_roots(first)

    @property
    def folders(self) -> tuple[Path, ...]:
        """Every folder that a lookup reads, in order."""
        private = () if self.private is None else (self.private.path,)
        return (*(root.path for root in self.search), *private)

    def lookup(self, name: str, key: Key) -> Hit | None:
        """The entry of a key, or None. Damaged entries are moved aside and count as missing.

        Search folders hold prebuilt kernels: there the parts that mlagen decides must agree, whichever
        compiler made them. In the private folder all parts must agree.
        """
        for root in self.search:
            exact = () if key.digest is None else (key.digest,)
            for digest in dict.fromkeys((*exact, *_prebuilt(root, name, key))):
                hit = self._read(root, name, digest)
                if hit is not None and hit.entry.key.portable == key.portable:
                    return hit
        if self.private is None or key.digest is None:
            return None
        hit = self._read(self.private, name, key.digest)
        if hit is not None and hit.entry.key == key:
            return hit
        return None

    def _read(self, root: Root, name: str, digest: str) -> Hit | None:
        folder = root.entry(name, digest)
        try:
            entry = read_entry(folder, name)
            if digest != entry.key.digest:
                raise DamagedError("the folder name is not the digest of the key")
        except FileNotFoundError:
            return None
        except DamagedError as error:
            self._quarantine(root, folder, str(error))
            return None
        return Hit(entry, folder)

    def _quarantine(self, root: Root, folder: Path, reason: str) -> None:
        """Moves a damaged entry of ours out of the way; a search folder is left as it is."""
        if not root.private:
            warn_once(f"prebuilt kernel {folder} cannot be used: {reason}")
            return
        target = root.base / "quarantine" / f"{folder.name[:16]}-{os.getpid()}-{os.urandom(4).hex()}"
        try:
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.rename(target)
        except FileNotFoundError:
            return
        except OSError as error:
            warn_once(f"damaged cache entry {folder} ({reason}) cannot be moved away: {error}")
            return
        warn_once(f"damaged cache entry {folder} ({reason}) was moved to {target} and is built again")

    def get_or_build(self, name: str, key: Key, make: Callable[[], Entry]) -> tuple[Entry, Path | None]:
        """The entry of a key, made by `make` on a miss. At most one process of a host makes it at a time.

        Returns:
            The entry, and its folder if it came from disk. What was just made is returned from memory.
        """
        hit = self.lookup(name, key)
        if hit is not None:
            return hit.entry, hit.folder
        with self._lock(key):
            hit = self.lookup(name, key)
            if hit is not None:
                return hit.entry, hit.folder
            entry = make()
            self.store(entry)
            return entry, None

    @contextmanager
    def _lock(self, key: Key) -> Iterator[None]:
        """Waits for another maker of the same key; goes on without a lock where there is none to be had."""
        with ExitStack() as stack:
            if self.private is not None and key.digest is not None:
                folder = self.private.base / "locks"
                try:
                    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                    stack.enter_context(exclusive(folder / f"{key.digest}.lock", LOCK_SECONDS))
                except OSError as error:
                    logger().info("no lock for %s: %s", key.digest, error)
            yield

    def store(self, entry: Entry) -> bool:
        """Puts an entry into the private folder. Failing to do so is a warning, never an error."""
        if self.private is None or entry.key.digest is None:
            return False
        return store_entry(self.private, entry, entry.key.digest)

    def replace(self, entry: Entry) -> bool:
        """Stores an entry in place of the one with the same key, which is taken away first."""
        if self.private is None or entry.key.digest is None:
            return False
        _discard(self.private, self.private.entry(entry.name, entry.key.digest))
        return self.store(entry)

    def names(self) -> dict[str, list[Path]]:
        """Entries on disk, by kernel name. For reports: no lookup depends on a listing."""
        found: dict[str, list[Path]] = {}
        roots = (*self.search, *(() if self.private is None else (self.private,)))
        for root in roots:
            if root.base.is_dir():
                for folder in sorted(root.base.glob(f"mla_decode_*/*/{MANIFEST}")):
                    found.setdefault(folder.parent.parent.name, []).append(folder.parent)
        return found

    def collect_garbage(self, *, older_than: float = GARBAGE_SECONDS) -> int:
        """Removes temporary, quarantined and lock files of the private folder older than this many seconds.

        Returns:
            How many were removed.
        """
        if self.private is None:
            return 0
        limit = time.time() - older_than
        removed = 0
        for part in ("tmp", "quarantine", "locks"):
            for path in sorted((self.private.base / part).glob("*")):
                try:
                    if path.lstat().st_mtime >= limit:
                        continue
                    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
                    removed += 1
                except OSError as error:
                    logger().info("cannot remove %s: %s", path, error)
        return removed

    def remove(self, names: Sequence[str] = (), *, older_than: float = 0.0) -> int:
        """Removes entries of the private folder: of these kernels, or all; running processes go on.

        Args:
            names: kernel names; none for all.
            older_than: only entries that were written more than this many seconds ago.

        Returns:
            How many entries were removed.
        """
        if self.private is None:
            return 0
        limit = time.time() - older_than
        removed = 0
        for name in names or ("mla_decode_*",):
            for manifest in sorted(self.private.base.glob(f"{name}/*/{MANIFEST}")):
                if older_than and manifest.lstat().st_mtime >= limit:
                    continue
                removed += _discard(self.private, manifest.parent)
        return removed


def _prebuilt(root: Root, name: str, key: Key) -> list[str]:
    """Digests under which a bundle has a kernel, whichever compiler made it."""
    try:
        rows = read_index(root.path)
    except FileNotFoundError:
        return []
    except ManifestError as error:
        warn_once(f"bundle {root.path} is searched without its manifest: {error}")
        return []
    return [row["digest"] for row in rows if (row["name"], row["portable"]) == (name, key.portable)]


def _discard(root: Root, folder: Path) -> bool:
    """Takes a folder out of the tree by one rename, then deletes it. Returns whether it was there.

    Raises:
        CacheError: it cannot be moved.
    """
    target = root.base / "tmp" / f"{os.getpid()}-{os.urandom(8).hex()}"
    try:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.rename(target)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise CacheError(f"cannot remove {folder}: {error}") from error
    shutil.rmtree(target, ignore_errors=True)
    return True


def store_entry(root: Root, entry: Entry, digest: str) -> bool:
    """Writes a complete folder beside the tree, then renames it into place.

    Returns:
        Whether the entry is on disk now, by us or by another process that was faster.
    """
    for _ in range(3):
        try:
            return _store_once(root, entry, digest)
        except FileNotFoundError:
            continue  # somebody removed the tree under us: make it again
        except OSError as error:
            warn_once(f"kernel {entry.name} is not kept in {root.path}: {error}")
            return False
    warn_once(f"kernel {entry.name} is not kept in {root.path}: the folder keeps vanishing")
    return False


def _store_once(root: Root, entry: Entry, digest: str) -> bool:
    target = root.entry(entry.name, digest)
    temporary = root.base / "tmp" / f"{os.getpid()}-{os.urandom(8).hex()}"
    temporary.mkdir(mode=0o700, parents=True)
    try:
        for file, data in {**entry.files, MANIFEST: entry.manifest()}.items():
            write_synced(temporary / file, data)
        sync_folder(temporary)
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            temporary.rename(target)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR, errno.EISDIR):
                raise
            # Another process was faster, or something else is in the way. We have our own result in any case.
            return is_usable(target, entry)
        sync_folder(target.parent)
        return True
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
