-- A partitioned table is one entity, however many partitions it has. REPLICA IDENTITY FULL must be set on the root and
-- on each partition.
--# [entities.event]
--# table = "public.event"
--# key = ["id", "day"]

CREATE TABLE event (id int, day date, note text, PRIMARY KEY (id, day)) PARTITION BY RANGE (day);
CREATE TABLE event_2025 PARTITION OF event FOR VALUES FROM ('2025-01-01') TO ('2026-01-01');
CREATE TABLE event_2026 (note text, day date NOT NULL, gone int, id int NOT NULL);
ALTER TABLE event_2026 DROP COLUMN gone;
ALTER TABLE event ATTACH PARTITION event_2026 FOR VALUES FROM ('2026-01-01') TO ('2027-01-01');
ALTER TABLE event REPLICA IDENTITY FULL;
ALTER TABLE event_2025 REPLICA IDENTITY FULL;
ALTER TABLE event_2026 REPLICA IDENTITY FULL;
INSERT INTO event VALUES (1, '2025-03-01', 'read from the first'), (2, '2026-03-01', 'read from the second');

--> run
-> {"entity": "event", "key": "[\"1\",\"2025-03-01\"]",
    "provenance": {"source": {"table": "public.event", "op": "read", "ordinal": 2}},
    "current": {"id":1,"day":"2025-03-01","note":"read from the first"}}
-> {"entity": "event", "key": "[\"2\",\"2026-03-01\"]",
    "provenance": {"source": {"table": "public.event", "op": "read", "ordinal": 2}},
    "current": {"id":2,"day":"2026-03-01","note":"read from the second"}}

INSERT INTO event VALUES (3, '2025-12-31', 'last year');
-> {"entity": "event", "key": "[\"3\",\"2025-12-31\"]",
    "provenance": {"source": {"table": "public.event", "op": "create", "ordinal": 0}},
    "current": {"id":3,"day":"2025-12-31","note":"last year"}}

-- In this partition, the columns have another order, and one column was dropped.
INSERT INTO event VALUES (4, '2026-01-01', 'this year');
-> {"entity": "event", "key": "[\"4\",\"2026-01-01\"]",
    "provenance": {"source": {"table": "public.event", "op": "create", "ordinal": 0}},
    "current": {"id":4,"day":"2026-01-01","note":"this year"}}

UPDATE event SET note = 'changed' WHERE id IN (3, 4);
-> {"entity": "event", "key": "[\"3\",\"2025-12-31\"]",
    "provenance": {"source": {"table": "public.event", "op": "update", "ordinal": 0}},
    "current": {"id":3,"day":"2025-12-31","note":"changed"}, "original": {"id":3,"day":"2025-12-31","note":"last year"}}
-> {"entity": "event", "key": "[\"4\",\"2026-01-01\"]",
    "provenance": {"source": {"table": "public.event", "op": "update", "ordinal": 2}},
    "current": {"id":4,"day":"2026-01-01","note":"changed"}, "original": {"id":4,"day":"2026-01-01","note":"this year"}}

-- A row that is written to a partition is published as a row of the root.
INSERT INTO event_2026 (id, day, note) VALUES (5, '2026-05-05', 'into the partition');
-> {"entity": "event", "key": "[\"5\",\"2026-05-05\"]",
    "provenance": {"source": {"table": "public.event", "op": "create", "ordinal": 0}},
    "current": {"id":5,"day":"2026-05-05","note":"into the partition"}}

-- A row that moves to another partition also gets another key, because the day is part of the key. The log has a delete
-- and an insert, and does not say that both are the same row.
UPDATE event SET day = '2026-12-31' WHERE id = 3;
-> {"entity": "event", "key": "[\"3\",\"2025-12-31\"]",
    "provenance": {"source": {"table": "public.event", "op": "delete", "ordinal": 0}}, "current": null,
    "original": {"id":3,"day":"2025-12-31","note":"changed"}}
-> {"entity": "event", "key": "[\"3\",\"2026-12-31\"]",
    "provenance": {"source": {"table": "public.event", "op": "create", "ordinal": 2}},
    "current": {"id":3,"day":"2026-12-31","note":"changed"}}

-- A new partition is published without any configuration.
CREATE TABLE event_2027 PARTITION OF event FOR VALUES FROM ('2027-01-01') TO ('2028-01-01');
ALTER TABLE event_2027 REPLICA IDENTITY FULL;
INSERT INTO event VALUES (6, '2027-01-01', 'next year');
-> {"entity": "event", "key": "[\"6\",\"2027-01-01\"]",
    "provenance": {"source": {"table": "public.event", "op": "create", "ordinal": 0}},
    "current": {"id":6,"day":"2027-01-01","note":"next year"}}

-- The log does not show that a partition is dropped, so no message follows here. The service notices the loss of the
-- rows only when it next reads the catalogue.
DROP TABLE event_2025;

-- If a transaction deletes a row of a partitioned table and then inserts it again, the two become one update.
BEGIN;
DELETE FROM event WHERE id = 5;
INSERT INTO event VALUES (5, '2026-05-05', 'again');
COMMIT;
-> {"entity": "event", "key": "[\"5\",\"2026-05-05\"]",
    "provenance": {"source": {"table": "public.event", "op": "update", "ordinal": 2}},
    "current": {"id":5,"day":"2026-05-05","note":"again"},
    "original": {"id":5,"day":"2026-05-05","note":"into the partition"}}

DELETE FROM event WHERE id = 5;
-> {"entity": "event", "key": "[\"5\",\"2026-05-05\"]",
    "provenance": {"source": {"table": "public.event", "op": "delete", "ordinal": 0}}, "current": null,
    "original": {"id":5,"day":"2026-05-05","note":"again"}}
