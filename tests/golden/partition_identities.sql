-- The root has REPLICA IDENTITY FULL, but its partition does not: a new partition never gets its root's identity.
-- Then the server sends an old row that claims to be whole, but has nulls in all columns except the key. These columns
-- are unavailable, not null.
--# [entities.event]
--# table = "public.event"

CREATE TABLE event (id int, day date, note text NOT NULL, PRIMARY KEY (id, day)) PARTITION BY RANGE (day);
ALTER TABLE event REPLICA IDENTITY FULL;
CREATE TABLE event_2025 PARTITION OF event FOR VALUES FROM ('2025-01-01') TO ('2026-01-01');

--> run

INSERT INTO event VALUES (1, '2025-03-01', 'first'), (2, '2025-03-02', 'second');
-> {"entity": "event", "key": "[\"1\",\"2025-03-01\"]",
    "provenance": {"source": {"table": "public.event", "op": "create", "ordinal": 0}},
    "current": {"id":1,"day":"2025-03-01","note":"first"}}
-> {"entity": "event", "key": "[\"2\",\"2025-03-02\"]",
    "provenance": {"source": {"table": "public.event", "op": "create", "ordinal": 2}},
    "current": {"id":2,"day":"2025-03-02","note":"second"}}

-- If the key does not change, there is no old row.
UPDATE event SET note = 'changed' WHERE id = 1;
-> {"entity": "event", "key": "[\"1\",\"2025-03-01\"]",
    "provenance": {"source": {"table": "public.event", "op": "update", "ordinal": 0}},
    "current": {"id":1,"day":"2025-03-01","note":"changed"}}

UPDATE event SET id = 7 WHERE id = 1;
-> {"entity": "event", "key": "[\"1\",\"2025-03-01\"]", "movedTo": {"key": "[\"7\",\"2025-03-01\"]"},
    "provenance": {"source": {"table": "public.event", "op": "delete", "ordinal": 0, "unavailableOriginal": ["note"]}},
    "current": null, "original": {"id":1,"day":"2025-03-01"}}
-> {"entity": "event", "key": "[\"7\",\"2025-03-01\"]", "movedFrom": {"key": "[\"1\",\"2025-03-01\"]"},
    "provenance": {"source": {"table": "public.event", "op": "create", "ordinal": 1}},
    "current": {"id":7,"day":"2025-03-01","note":"changed"}}

DELETE FROM event WHERE id = 2;
-> {"entity": "event", "key": "[\"2\",\"2025-03-02\"]",
    "provenance": {"source": {"table": "public.event", "op": "delete", "ordinal": 0, "unavailableOriginal": ["note"]}},
    "current": null, "original": {"id":2,"day":"2025-03-02"}}

ALTER TABLE event_2025 REPLICA IDENTITY FULL;
DELETE FROM event WHERE id = 7;
-> {"entity": "event", "key": "[\"7\",\"2025-03-01\"]",
    "provenance": {"source": {"table": "public.event", "op": "delete", "ordinal": 0}}, "current": null,
    "original": {"id":7,"day":"2025-03-01","note":"changed"}}
