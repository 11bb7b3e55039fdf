"""API keys and their limits, stored in a file.

A key is 32 random bytes and cannot be guessed, so a plain SHA-256 of it is safe at rest; slow hashes are for passwords
that people choose. The file holds hashes and limits, never a key.
"""

import hmac
import json
import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, Self

import structlog
from filelock import FileLock
from pydantic import BaseModel, Field, ValidationError, model_validator

from qguide.qnet.errors import ConfigError

PREFIX: Final = "qg_"
NAME_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
_RANDOM_BYTES: Final = 32
_LOCK_TIMEOUT_S: Final = 10.0  # a change takes milliseconds; a lock held for longer belongs to a process that hangs
_log = structlog.get_logger(__name__)


class Key(BaseModel, frozen=True, extra="forbid"):
    """One API key."""

    name: str = Field(pattern=NAME_PATTERN)  # the name in logs and metrics; never the key itself
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    admin: bool = False  # may also load, unload and rename Q models
    metrics: bool = False  # may read the metrics of all keys, as an admin may
    requests_per_minute: int | None = Field(default=None, ge=0)  # None takes the server's setting; 0 is no limit
    tokens_per_day: int | None = Field(default=None, ge=0)
    # keys of one group share cached prefixes, scores and paraphrases; None keeps this key's cached entries to itself
    cache_group: str | None = Field(default=None, pattern=NAME_PATTERN)
    created: datetime

    @property
    def cache_salt(self) -> str:
        """Salt that separates its cached entries from others; hashed, because upstreams see it."""
        owner = f"key:{self.name}" if self.cache_group is None else f"group:{self.cache_group}"
        return hash_of(owner)


class KeyList(BaseModel, frozen=True, extra="forbid"):
    """Content of the keys file."""

    keys: tuple[Key, ...] = ()

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        names = [key.name for key in self.keys]
        if len(set(names)) < len(names):
            raise ValueError("two keys have the same name; remove one of them")
        return self

    def find(self, given: str) -> Key | None:
        """Look a key up in constant time; None if it is unknown."""
        digest = hash_of(given)
        found = None
        for key in self.keys:
            if hmac.compare_digest(key.sha256, digest):
                found = key
        return found


class KeyFile:
    """A keys file that is read again when it changes, so that revocation takes effect at once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp = _stamp(path)
        self._keys = read_keys(path)
        if not self._keys.keys:
            raise ConfigError(f"{path} holds no API key; create one with `qguide keys create NAME --file {path}`")

    def find(self, given: str) -> Key | None:
        """Look a key up in the current file, or in its last valid content if it is malformed."""
        self._reread()
        return self._keys.find(given)

    @property
    def names(self) -> set[str]:
        """Names of all keys in the current file."""
        self._reread()
        return {key.name for key in self._keys.keys}

    def _reread(self) -> None:
        stamp = _stamp(self._path)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._keys = read_keys(self._path)
        except ConfigError as error:
            _log.error("keys_not_reread", reason=str(error))
        else:
            _log.info("keys_reread", keys=len(self._keys.keys))


def hash_of(key: str) -> str:
    """SHA-256 of a key, as stored in the file."""
    return sha256(key.encode()).hexdigest()


def read_keys(path: Path) -> KeyList:
    """Read a keys file."""
    try:
        return KeyList.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ConfigError(
            f"keys file {path} cannot be read ({error.strerror}); create one with `qguide keys create NAME --file "
            f"{path}`"
        ) from error
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise ConfigError(f"keys file {path} is malformed at {place or 'the top level'}: {first['msg']}") from error


def create_key(path: Path, name: str, **fields: Any) -> str:
    """Add a key to the file, creating it if need be; returns the new key, which cannot be retrieved again.

    Args:
        fields: further fields of `Key`.
    """
    key = PREFIX + secrets.token_urlsafe(_RANDOM_BYTES)
    try:
        new = Key(name=name, sha256=hash_of(key), created=datetime.now(UTC).replace(microsecond=0), **fields)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ConfigError(f"{first['loc'][0]} is {first['input']!r}: {first['msg']}") from error
    with _locked(path):
        keys = read_keys(path).keys if path.exists() else ()
        if name in (known.name for known in keys):
            raise ConfigError(f"there already is a key {name!r}; revoke it or take another name")
        _write(path, KeyList(keys=(*keys, new)))
    return key


def revoke_key(path: Path, name: str) -> None:
    """Remove a key from the file."""
    with _locked(path):
        keys = read_keys(path).keys
        if name not in (key.name for key in keys):
            names = ", ".join(key.name for key in keys)
            raise ConfigError(f"there is no key {name!r}; the file has {names or 'none'}")
        _write(path, KeyList(keys=tuple(key for key in keys if key.name != name)))


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Lock the file against other processes while it is read and replaced.

    The lock is on a file beside it, because each change replaces the keys file itself. The system releases the lock
    when its holder dies, so a killed command leaves no lock behind.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{path}.lock", timeout=_LOCK_TIMEOUT_S, mode=0o600):
            yield
    except OSError as error:  # filelock's Timeout is an OSError too
        reason = error.strerror or f"another process has held {path}.lock for {_LOCK_TIMEOUT_S:g} s"
        raise ConfigError(
            f"keys file {path} cannot be changed ({reason}); make its folder writable and run one such command at a "
            "time"
        ) from error


def _stamp(path: Path) -> tuple[int, int] | None:
    """Modification time and inode, which change with the file; None if it does not exist."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino


def _write(path: Path, keys: KeyList) -> None:
    """Replace the file atomically, readable by its owner only."""
    text = json.dumps(keys.model_dump(mode="json", exclude_none=True), indent=2) + "\n"
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)  # mode 0600
    try:
        with open(descriptor, "w") as file:
            file.write(text)
        os.replace(temporary, path)
    except OSError:  # on a full disk keep the old file and remove the incomplete new one
        os.unlink(temporary)
        raise
