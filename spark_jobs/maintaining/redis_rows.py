"""Writes states into Redis from Spark's tasks. A Lua script applies a state only if it is newer than the row.

A row is a hash with one field for each column that is not null. Fields are text. If a published value
(docs/reference/types.md) is a JSON string, the field has the content of this string; otherwise, it has the JSON.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec
import pyarrow as pa
import redis

from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.model import Op
from changelog.envelope.states.fold import ABOUT, BEGUN
from changelog.schemas.avro import Column
from changelog.schemas.types import Primitive
from changelog.spark_jobs.views.copy_rows import Render, renderer

WRITTEN: Final = "states long"
"""The column in which a task reports how many states it wrote."""

TIMEOUT_S: Final = 30.0

_STATES_AT_ONCE: Final = 500
"""How many states are sent before the answers are read."""

_STALE: Final = "STALE"
"""The first word of the script's error if a later batch has begun, and the task still works for an earlier one."""

_LISTS: Final = ("_unavailable", "_out_of_range")
_MOMENT: Final = renderer(Primitive.TIMESTAMP_TZ)
_NOT_FIELDS: Final = ("_key", *_LISTS)

IS_NEWER: Final = """
local function is_newer(a, b)  -- compares bytes; Lua's own comparison depends on the locale
    for i = 1, math.min(#a, #b) do
        if a:byte(i) ~= b:byte(i) then return a:byte(i) > b:byte(i) end
    end
    return #a > #b
end
"""
"""A Lua function. Scripts that need it begin with this text."""

_APPLY: Final = (
    IS_NEWER
    + """
local row, markers, marked_at, keys = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
if redis.call('HGET', KEYS[5], 'nonce') ~= ARGV[2] then
    return redis.error_reply('STALE a later batch has begun')
end
local state = cjson.decode(ARGV[1])
local old_position = redis.call('HGET', row, '_position')
local marker = redis.call('HGET', markers, state.key)
if old_position and not is_newer(state.position, old_position) then return 0 end
if marker and not is_newer(state.position, marker) then return 0 end
if state.deleted then
    redis.call('DEL', row)
    redis.call('SREM', keys, state.key)
    redis.call('HSET', markers, state.key, state.position)
    redis.call('ZADD', marked_at, redis.call('TIME')[1], state.key)
    return 1
end
redis.call('SADD', keys, state.key)  -- first: when memory is full, Redis refuses a script's first write only
local fields, unavailable, out_of_range = {}, {}, state.out_of_range
for name, value in pairs(state.values) do fields[name] = value end
if old_position and not state.begun then
    local was_unavailable, was_out_of_range = {}, {}
    for _, name in ipairs(cjson.decode(redis.call('HGET', row, '_unavailable') or '[]')) do
        was_unavailable[name] = true
    end
    for _, name in ipairs(cjson.decode(redis.call('HGET', row, '_out_of_range') or '[]')) do
        was_out_of_range[name] = true
    end
    for _, name in ipairs(state.unavailable) do
        fields[name] = redis.call('HGET', row, name) or nil
        if was_unavailable[name] then table.insert(unavailable, name) end
        if was_out_of_range[name] then table.insert(out_of_range, name) end
    end
else
    unavailable = state.unavailable
end
if #unavailable > 0 then fields['_unavailable'] = cjson.encode(unavailable) end
table.sort(out_of_range)
if #out_of_range > 0 then fields['_out_of_range'] = cjson.encode(out_of_range) end
redis.call('DEL', row)
for name, value in pairs(fields) do redis.call('HSET', row, name, value) end
return 1
"""
)


def names_of(prefix: str, key: str) -> list[str]:
    """Returns the names that Redis has for a row, the markers of deleted keys, the times of these markers, the set of
    the keys of all rows, and the progress.
    """
    return [f"{prefix}:{name}" for name in (f"row:{key}", "deleted", "deleted:at", "keys", "progress")]


def writer(
    url: str, prefix: str, nonce: str, columns: Sequence[Column]
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Returns a function that writes a task's states, and yields one row of `WRITTEN`.

    The states have `columns`, then the columns of `ABOUT`, then `BEGUN`. The function raises ChangelogError (STORAGE)
    if Redis reports an error, or if the progress has another `nonce`: then a later batch has begun, and this task must
    not write any more states.
    """
    renders = {column.name: _text(column) for column in columns}
    renders |= {name: _about for name in ABOUT.names if name not in _NOT_FIELDS}
    names = [*(column.name for column in columns), *ABOUT.names, BEGUN]

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        count = 0
        try:
            with redis.Redis.from_url(url, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S) as client:
                apply = client.register_script(_APPLY)
                for batch in batches:
                    for start in range(0, len(batch), _STATES_AT_ONCE):
                        with client.pipeline(transaction=False) as pipeline:
                            for row in batch.rename_columns(names).slice(start, _STATES_AT_ONCE).to_pylist():
                                apply(names_of(prefix, row["_key"]), [_state(row, renders), nonce], client=pipeline)
                            pipeline.execute()
                    count += len(batch)
        except redis.RedisError as error:
            reason = "a later batch has begun" if _STALE in str(error) else type(error).__name__
            raise ChangelogError(Kind.STORAGE, f"writing rows to Redis: {reason}") from None
        yield pa.record_batch([pa.array([count], pa.int64())], ["states"])

    return write


def _state(row: dict[str, Any], renders: dict[str, Render]) -> bytes:
    """Returns a state as the JSON that the script reads."""
    values = {name: render(row[name]) for name, render in renders.items() if row[name] is not None}
    return msgspec.json.encode(
        {
            "key": row["_key"],
            "position": row["_position"],
            "deleted": row["_op"] == Op.DELETE,
            "begun": row[BEGUN],
            "unavailable": row["_unavailable"],
            "out_of_range": row["_out_of_range"],
            "values": values,
        }
    )


def _text(column: Column) -> Render:
    if column.type is Primitive.JSON:
        return lambda value: value
    render = renderer(column.type)

    def text(value: Any) -> str:
        published = render(value)
        return published if isinstance(published, str) else msgspec.json.encode(published).decode()

    return text


def _about(value: Any) -> Any:
    return _MOMENT(value) if isinstance(value, datetime) else value
