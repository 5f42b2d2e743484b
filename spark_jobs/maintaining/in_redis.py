"""Keeps a view in Redis: one hash for each row. Spark's tasks apply the states, and the progress is stored last.

If the prefix of the names is `orders`, `orders:row:KEY` is a row, and `orders:keys` is the set of the keys of all rows.
`orders:deleted` has, for each deleted key, the position of the delete; we call this the key's *marker*.
`orders:deleted:at` has the times at which the deletes were applied, and `orders:progress` has the progress.
"""

import re
import secrets
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import datetime
from typing import Any, Final, NoReturn

import redis

from changelog.connectors.failpoints import Reach
from changelog.envelope.errors import ChangelogError, Kind
from changelog.schemas.avro import Column
from changelog.spark_jobs.maintaining.redis_rows import IS_NEWER, TIMEOUT_S, WRITTEN, names_of, writer
from changelog.spark_jobs.maintaining.target import StateBatch, TargetSettings

_SCAN_KEYS: Final = 1000
"""How many keys are read or removed at a time."""

_REMOVE: Final = (
    IS_NEWER
    + """
for number = 2, #ARGV do
    local row = KEYS[1] .. ARGV[number]
    local position = redis.call('HGET', row, '_position')
    if ARGV[1] == '' or (position and is_newer(ARGV[1], position)) then
        redis.call('DEL', row)
        redis.call('SREM', KEYS[2], ARGV[number])
    end
end
"""
)
"""Removes the rows of some keys. If the first argument is not empty, it is a position, and only rows with earlier
positions are removed."""

_SET: Final = """
local progress, record, nonce, field, value = KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local old_nonce = redis.call('HGET', progress, 'nonce')
if redis.call('HGET', progress, field) == value and (field == 'nonce' or old_nonce == nonce) then
    return 1  -- the client sends a call again if it lost the answer
end
if redis.call('HGET', progress, 'record') ~= record or old_nonce ~= nonce then return 0 end
redis.call('HSET', progress, field, value)
return 1
"""
"""Sets a field of the progress, unless another run has changed the record or the nonce, a random text that each batch
has of its own. Returns whether the field now has this value.
"""

_PREFIX: Final = re.compile(r"[\w.:-]{1,200}")


@contextmanager
def opened(settings: TargetSettings) -> Iterator["RedisTarget"]:
    """Opens the view whose names in Redis begin with `settings.to`. If two runs write to the view at the same time, one
    of them fails.

    Raises ChangelogError: USAGE for wrong settings, CONNECTION and ACCESS if the server refuses. An error of the client
    within the block becomes a ChangelogError.
    """
    if settings.dsn is None:
        hint = "--dsn env:NAME, or file:PATH, with redis://HOST:PORT/DATABASE: never the URL itself"
        raise ChangelogError(Kind.USAGE, "--output redis needs --dsn", hint=hint)
    if not _PREFIX.fullmatch(settings.to):
        hint = "--to is the beginning of the names: letters, digits, _, ., : and -"
        raise ChangelogError(Kind.USAGE, f"{settings.to!r} cannot begin names in Redis", hint=hint)
    try:
        with closing(_connected(settings.dsn)) as client:
            yield RedisTarget(client, settings.dsn, settings.to, settings.reach)
    except (redis.AuthenticationError, redis.exceptions.NoPermissionError) as error:
        hint = "check --dsn, and the user's rights (docs/how-to/maintain-views.md)"
        raise ChangelogError(Kind.ACCESS, f"Redis refuses the user ({type(error).__name__})", hint=hint) from None
    except (redis.ConnectionError, redis.TimeoutError) as error:
        message = f"cannot reach Redis ({type(error).__name__})"
        raise ChangelogError(Kind.CONNECTION, message, hint="check --dsn, and whether the server runs") from None
    except redis.RedisError as error:
        raise ChangelogError(Kind.STORAGE, f"Redis reports an error ({type(error).__name__})") from None


def _connected(url: str) -> "redis.Redis":
    """Returns a client that has reached the server. Raises ChangelogError (USAGE) if the URL is not valid."""
    try:
        client = redis.Redis.from_url(
            url, decode_responses=True, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S
        )
        client.ping()  # only a connection shows that no host can have this name, or that the URL has unknown options
    except (TypeError, ValueError):
        hint = "redis://USER:PASSWORD@HOST:PORT/DATABASE, or rediss:// for TLS"
        raise ChangelogError(Kind.USAGE, "the text of --dsn is not a URL of Redis", hint=hint) from None
    return client


class RedisTarget:
    """A view in Redis: its rows, the markers of deleted keys, and the progress."""

    def __init__(self, client: "redis.Redis", url: str, prefix: str, reach: Reach) -> None:
        self._client: Any = client
        self._url, self._prefix, self._reach = url, prefix, reach
        self._rows, self._markers, self._marked_at, self._keys, self._progress = names_of(prefix, "")
        self._last_record = self._nonce = ""

    def progress(self) -> str | None:
        """Returns the progress that was stored last; None if there is no view.

        If an earlier run was killed in `create`, while it removed the rows of an older view, this method first removes
        the rest of these rows.
        """
        if self._client.type(self._progress) not in ("none", "hash"):
            self._refuse(self._progress)
        record, nonce, is_emptying = self._client.hmget(self._progress, "record", "nonce", "emptying")
        if record is None:
            for name in (self._progress, self._markers, self._marked_at, self._keys):
                if self._client.exists(name):
                    self._refuse(name)
            return None
        if is_emptying:
            self._empty()
        self._last_record, self._nonce = record, nonce or ""
        return str(record)

    def create(self, columns: Sequence[Column], progress: str) -> None:
        """Stores the progress, and removes the rows of an earlier view."""
        del columns  # a hash needs no definition
        self._client.hset(self._progress, mapping={"record": progress, "emptying": "1", "nonce": ""})
        self._empty()
        self._last_record, self._nonce = progress, ""

    def apply(self, batch: StateBatch) -> None:
        """Applies a batch.

        1. Rows and markers from before a truncate are removed.
        2. Tasks apply the states.
        3. The progress is stored.

        Raises ChangelogError: IN_USE if another run has begun a batch, or built the view again, since this run last
        read or stored the progress; CONNECTION if the server was restarted while the tasks wrote rows, because it may
        have lost some of these rows.
        """
        server_id = self._server_id()
        nonce = secrets.token_hex(8)  # a task that still runs for an earlier batch does not know it
        self._set("nonce", nonce)
        self._nonce = nonce
        if batch.truncated is not None:  # 1
            self._remove_rows(batch.truncated)
            self._remove_markers(batch.truncated)
        numbered = batch.states.toDF(*(f"c{number}" for number, _ in enumerate(batch.states.columns)))
        write = writer(self._url, self._prefix, nonce, batch.columns)
        numbered.mapInArrow(write, WRITTEN).groupBy().sum().collect()  # 2
        self._reach("view:staged")
        if self._server_id() != server_id:
            hint = "run the job again: it repeats the batch"
            raise ChangelogError(Kind.CONNECTION, "Redis was restarted while a batch was written", hint=hint)
        self._set("record", batch.progress)  # 3
        self._last_record = batch.progress

    def forget(self, before: datetime) -> None:
        """Removes the markers of deletes that were applied before this time."""
        while keys := self._client.zrangebyscore(
            self._marked_at, "-inf", f"({int(before.timestamp())}", start=0, num=_SCAN_KEYS
        ):
            self._forget_keys(keys)

    def _empty(self) -> None:
        self._remove_rows("")
        self._client.delete(self._markers, self._marked_at)
        self._client.hdel(self._progress, "emptying")

    def _remove_rows(self, before: str) -> None:
        remove = self._client.register_script(_REMOVE)
        keys: list[str] = []
        for key in self._client.sscan_iter(self._keys, count=_SCAN_KEYS):
            keys.append(key)
            if len(keys) == _SCAN_KEYS:
                remove([self._rows, self._keys], [before, *keys])
                keys = []
        if keys:
            remove([self._rows, self._keys], [before, *keys])

    def _remove_markers(self, before: str) -> None:
        keys = [key for key, position in self._client.hscan_iter(self._markers, count=_SCAN_KEYS) if position < before]
        for start in range(0, len(keys), _SCAN_KEYS):
            self._forget_keys(keys[start : start + _SCAN_KEYS])

    def _forget_keys(self, keys: Sequence[str]) -> None:
        with self._client.pipeline(transaction=False) as pipeline:  # MULTI would need one more right
            pipeline.hdel(self._markers, *keys)
            pipeline.zrem(self._marked_at, *keys)
            pipeline.execute()

    def _refuse(self, name: str) -> NoReturn:
        hint = "use another --to: this job changes only views that it made"
        raise ChangelogError(Kind.USAGE, f"the key {name} in Redis is not part of a view that this job made", hint=hint)

    def _server_id(self) -> str:
        """Returns the id of the server's process. It changes with a restart or a failover."""
        return str(self._client.info("server")["run_id"])

    def _set(self, field: str, value: str) -> None:
        if not self._client.eval(_SET, 1, self._progress, self._last_record, self._nonce, field, value):
            hint = "let only one run at a time write a view"
            raise ChangelogError(Kind.IN_USE, f"another run has written {self._prefix}", hint=hint)
