-- If a row's key or the value that decides its partition changes, the messages are a delete at the old place and a
-- create at the new place.
--# mysql = true
--# [entities.guest]
--# table = "public.guest"
--# [entities.orders]
--# table = "public.orders"
--# partition_by = ["guest_id"]
--# partitions = 4

CREATE TABLE guest (id int PRIMARY KEY, name text);
ALTER TABLE guest REPLICA IDENTITY FULL;
CREATE TABLE orders (id int PRIMARY KEY, guest_id int NOT NULL, note text);
ALTER TABLE orders REPLICA IDENTITY FULL;

--> run

INSERT INTO guest VALUES (1, 'Ada');
-> {"entity": "guest", "key": "1", "provenance": {"source": {"table": "public.guest", "op": "create", "ordinal": 0}},
    "current": {"id":1,"name":"Ada"}}

-- The two halves of a move have the ordinals 2n and 2n + 1.
UPDATE guest SET id = 2 WHERE id = 1;
-> {"entity": "guest", "key": "1", "movedTo": {"key": "2"},
    "provenance": {"source": {"table": "public.guest", "op": "delete", "ordinal": 0}}, "current": null,
    "original": {"id":1,"name":"Ada"}}
-> {"entity": "guest", "key": "2", "movedFrom": {"key": "1"},
    "provenance": {"source": {"table": "public.guest", "op": "create", "ordinal": 1}}, "current": {"id":2,"name":"Ada"}}

UPDATE guest SET id = 3, name = 'Grace' WHERE id = 2;
-> {"entity": "guest", "key": "2", "movedTo": {"key": "3"},
    "provenance": {"source": {"table": "public.guest", "op": "delete", "ordinal": 0}}, "current": null,
    "original": {"id":2,"name":"Ada"}}
-> {"entity": "guest", "key": "3", "movedFrom": {"key": "2"},
    "provenance": {"source": {"table": "public.guest", "op": "create", "ordinal": 1}}, "current": {"id":3,"name":"Grace"}}

-- A chain of moves. Each row moves to a key that an earlier row has just given up.
INSERT INTO guest VALUES (4, 'Edsger');
-> {"entity": "guest", "key": "4", "provenance": {"source": {"table": "public.guest", "op": "create", "ordinal": 0}},
    "current": {"id":4,"name":"Edsger"}}

BEGIN;
UPDATE guest SET id = 5 WHERE id = 4;
UPDATE guest SET id = 4 WHERE id = 3;
UPDATE guest SET id = 3 WHERE id = 5;
COMMIT;
-> {"entity": "guest", "key": "4", "movedTo": {"key": "5"},
    "provenance": {"source": {"table": "public.guest", "op": "delete", "ordinal": 0}}, "current": null,
    "original": {"id":4,"name":"Edsger"}}
-> {"entity": "guest", "key": "5", "movedFrom": {"key": "4"},
    "provenance": {"source": {"table": "public.guest", "op": "create", "ordinal": 1}},
    "current": {"id":5,"name":"Edsger"}}
-> {"entity": "guest", "key": "3", "movedTo": {"key": "4"},
    "provenance": {"source": {"table": "public.guest", "op": "delete", "ordinal": 2}}, "current": null,
    "original": {"id":3,"name":"Grace"}}
-> {"entity": "guest", "key": "4", "movedFrom": {"key": "3"},
    "provenance": {"source": {"table": "public.guest", "op": "create", "ordinal": 3}}, "current": {"id":4,"name":"Grace"}}
-> {"entity": "guest", "key": "5", "movedTo": {"key": "3"},
    "provenance": {"source": {"table": "public.guest", "op": "delete", "ordinal": 4}}, "current": null,
    "original": {"id":5,"name":"Edsger"}}
-> {"entity": "guest", "key": "3", "movedFrom": {"key": "5"},
    "provenance": {"source": {"table": "public.guest", "op": "create", "ordinal": 5}},
    "current": {"id":3,"name":"Edsger"}}

-- The guest's id decides the partition. The key of the order does not.
INSERT INTO orders VALUES (1, 1, 'first'), (2, 2, 'second'), (3, 7, 'third');
-> {"entity": "orders", "key": "1", "partition": 3,
    "provenance": {"source": {"table": "public.orders", "op": "create", "ordinal": 0}},
    "current": {"id":1,"guest_id":1,"note":"first"}}
-> {"entity": "orders", "key": "2", "provenance": {"source": {"table": "public.orders", "op": "create", "ordinal": 2}},
    "current": {"id":2,"guest_id":2,"note":"second"}}
-> {"entity": "orders", "key": "3", "partition": 3,
    "provenance": {"source": {"table": "public.orders", "op": "create", "ordinal": 4}},
    "current": {"id":3,"guest_id":7,"note":"third"}}

-- The order gets another guest, and so moves to another partition.
UPDATE orders SET guest_id = 2 WHERE id = 1;
-> {"entity": "orders", "key": "1", "partition": 3, "movedTo": {"key": "1"},
    "provenance": {"source": {"table": "public.orders", "op": "delete", "ordinal": 0}}, "current": null,
    "original": {"id":1,"guest_id":1,"note":"first"}}
-> {"entity": "orders", "key": "1", "movedFrom": {"key": "1", "partition": 3},
    "provenance": {"source": {"table": "public.orders", "op": "create", "ordinal": 1}},
    "current": {"id":1,"guest_id":2,"note":"first"}}

-- If the new guest belongs to the same partition, the row does not move.
UPDATE orders SET guest_id = 11 WHERE id = 2;
-> {"entity": "orders", "key": "2", "provenance": {"source": {"table": "public.orders", "op": "update", "ordinal": 0}},
    "current": {"id":2,"guest_id":11,"note":"second"}, "original": {"id":2,"guest_id":2,"note":"second"}}

-- The key and the partition change in one update.
UPDATE orders SET id = 9, guest_id = 1 WHERE id = 1;
-> {"entity": "orders", "key": "1", "movedTo": {"key": "9", "partition": 3},
    "provenance": {"source": {"table": "public.orders", "op": "delete", "ordinal": 0}}, "current": null,
    "original": {"id":1,"guest_id":2,"note":"first"}}
-> {"entity": "orders", "key": "9", "partition": 3, "movedFrom": {"key": "1"},
    "provenance": {"source": {"table": "public.orders", "op": "create", "ordinal": 1}},
    "current": {"id":9,"guest_id":1,"note":"first"}}
