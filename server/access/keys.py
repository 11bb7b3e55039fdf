"""API keys: who may call, and how much.

A key is 32 random bytes, so nobody can guess it, and a plain SHA-256 of it is safe at rest: slow
hashes protect passwords that people choose. The file holds hashes and limits, never a key.
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
from typing import Final, Self

import structlog
from filelock import FileLock
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from qnet.errors import ConfigError

PREFIX: Final = "qg_"
NAME_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
_RANDOM_BYTES: Final = 32
_LOCK_TIMEOUT_S: Final = 10.0
"""A change takes milliseconds; who waits longer waits for a process that hangs."""
_log = structlog.get_logger(__name__)


class Key(BaseModel):
    """One caller.

    Attributes:
        name: what logs and metrics call it; never the key.
        sha256: of the key, as hex digits.
        admin: may also load, drop and rename Q models.
        requests_per_minute: None takes the server's setting; 0 is no limit.
        tokens_per_day: None takes the server's setting; 0 is no limit.
        cache_group: keys of one group find each other's prefixes, scores and paraphrases in the
            caches; None: only this key finds its own.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=NAME_PATTERN)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    admin: bool = False
    requests_per_minute: int | None = Field(default=None, ge=0)
    tokens_per_day: int | None = Field(default=None, ge=0)
    cache_group: str | None = Field(default=None, pattern=NAME_PATTERN)
    created: datetime

    @property
    def cache_salt(self) -> str:
        """What the caches tell it from others by; a hash, because upstreams see it."""
        owner = f"key:{self.name}" if self.cache_group is None else f"group:{self.cache_group}"
        return hash_of(owner)


class KeyList(BaseModel):
    """The file's content."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    keys: tuple[Key, ...] = ()

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        names = [key.name for key in self.keys]
        if len(set(names)) < len(names):
            raise ValueError("two keys have the same name; revoke one")
        return self

    def find(self, given: str) -> Key | None:
        """The caller with this key; takes as long for a wrong one as for a right one."""
        digest = hash_of(given)
        found = None
        for key in self.keys:
            if hmac.compare_digest(key.sha256, digest):
                found = key
        return found


class KeyFile:
    """The keys of a file, read again when it changes: a revoked key ends with the next request.

    Raises:
        ConfigError: the file is missing, holds no key or is not of the right shape.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp = _stamp(path)
        self._keys = read_keys(path)
        if not self._keys.keys:
            raise ConfigError(f"{path} holds no key; make one with `qguide keys create NAME`")

    def find(self, given: str) -> Key | None:
        """The caller with this key, as the file is now; the last good content if it is broken."""
        self._reread()
        return self._keys.find(given)

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
    """What the file holds of a key."""
    return sha256(key.encode()).hexdigest()


def read_keys(path: Path) -> KeyList:
    """The keys of a file.

    Raises:
        ConfigError: it is missing or not of the right shape.
    """
    try:
        return KeyList.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ConfigError(
            f"keys file {path} cannot be read ({error.strerror}); make one with `qguide keys "
            "create NAME`"
        ) from error
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise ConfigError(
            f"keys file {path} is broken at {place or 'its top'}: {first['msg']}"
        ) from error


def create_key(
    path: Path,
    name: str,
    *,
    admin: bool = False,
    requests_per_minute: int | None = None,
    tokens_per_day: int | None = None,
    cache_group: str | None = None,
) -> str:
    """Add a caller to the file, which is made if need be.

    Returns:
        The new key; nothing else ever shows it again.

    Raises:
        ConfigError: the name is taken or no name, a limit is negative, or the file is broken or
            cannot be written.
    """
    key = PREFIX + secrets.token_urlsafe(_RANDOM_BYTES)
    try:
        new = Key(
            name=name,
            sha256=hash_of(key),
            admin=admin,
            requests_per_minute=requests_per_minute,
            tokens_per_day=tokens_per_day,
            cache_group=cache_group,
            created=datetime.now(UTC).replace(microsecond=0),
        )
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ConfigError(f"{first['loc'][0]} is {first['input']!r}: {first['msg']}") from error
    with _locked(path):
        keys = read_keys(path).keys if path.exists() else ()
        if name in (known.name for known in keys):
            raise ConfigError(f"there is a key {name!r} already; revoke it or take another name")
        _write(path, KeyList(keys=(*keys, new)))
    return key


def revoke_key(path: Path, name: str) -> None:
    """Take a caller out of the file.

    Raises:
        ConfigError: there is none of that name, or the file is broken or cannot be written.
    """
    with _locked(path):
        keys = read_keys(path).keys
        if name not in (key.name for key in keys):
            names = ", ".join(key.name for key in keys)
            raise ConfigError(f"there is no key {name!r}; there are {names}")
        _write(path, KeyList(keys=tuple(key for key in keys if key.name != name)))


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Let one process at a time read and replace the file.

    The lock is on a file beside it, because the keys file itself is replaced by each change. The
    system gives it up when its holder dies, so a killed command locks nobody out.

    Raises:
        ConfigError: the file or its lock cannot be written, or the lock was not to be had.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{path}.lock", timeout=_LOCK_TIMEOUT_S, mode=0o600):
            yield
    except OSError as error:  # the lock's time-out is one, too
        reason = error.strerror or f"another process has held {path}.lock for {_LOCK_TIMEOUT_S:g} s"
        raise ConfigError(
            f"keys file {path} cannot be changed ({reason}); run the command where the folder can "
            "be written, one at a time"
        ) from error


def _stamp(path: Path) -> tuple[int, int] | None:
    """Changes with the file; None: it is not there."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino


def _write(path: Path, keys: KeyList) -> None:
    """All or nothing, and for the owner's eyes alone."""
    text = json.dumps(keys.model_dump(mode="json", exclude_none=True), indent=2) + "\n"
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)  # mode 0600
    try:
        with open(descriptor, "w") as file:
            file.write(text)
        os.replace(temporary, path)
    except OSError:  # a full disk: the old file stands, and half a new one must not stay
        os.unlink(temporary)
        raise
