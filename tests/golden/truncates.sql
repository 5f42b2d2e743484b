-- The entity's policy decides what a TRUNCATE does.
--# [entities.cache]
--# table = "public.cache"
--# on_truncate = "publish"
--# partitions = 2
--# [entities.orders]
--# table = "public.orders"
--# [entities.item]
--# table = "public.item"
--# on_truncate = "publish"

CREATE TABLE cache (id int PRIMARY KEY);
CREATE TABLE orders (id int PRIMARY KEY);
CREATE TABLE item (id int PRIMARY KEY, order_id int REFERENCES orders);
CREATE TABLE elsewhere (id int PRIMARY KEY);

--> run

INSERT INTO cache VALUES (1);
-> {"entity": "cache", "key": "1", "partition": 1,
    "provenance": {"source": {"table": "public.cache", "op": "create", "ordinal": 0}}, "current": {"id":1}}

-- A published TRUNCATE gives one message for each partition, under the reserved key.
TRUNCATE cache;
-> {"entity": "cache", "key": "\u0000truncate",
    "provenance": {"source": {"table": "public.cache", "op": "truncate", "ordinal": 0}}, "current": null,
    "original": null}
-> {"entity": "cache", "key": "\u0000truncate", "partition": 1,
    "provenance": {"source": {"table": "public.cache", "op": "truncate", "ordinal": 0}}, "current": null,
    "original": null}

BEGIN;
SELECT pg_logical_emit_message(true, 'provenance', '{"apiVersion": "v2", "serviceName": "cache-keeper", "identifier": "nightly"}');
INSERT INTO cache VALUES (2);
TRUNCATE cache;
INSERT INTO cache VALUES (3);
COMMIT;
-> {"entity": "cache", "key": "2",
    "provenance": {"apiVersion": "v2", "serviceName": "cache-keeper", "identifier": "nightly", "source": {"table": "public.cache", "op": "create", "ordinal": 2}},
    "current": {"id":2}}
-> {"entity": "cache", "key": "\u0000truncate",
    "provenance": {"apiVersion": "v2", "serviceName": "cache-keeper", "identifier": "nightly", "source": {"table": "public.cache", "op": "truncate", "ordinal": 4}},
    "current": null, "original": null}
-> {"entity": "cache", "key": "\u0000truncate", "partition": 1,
    "provenance": {"apiVersion": "v2", "serviceName": "cache-keeper", "identifier": "nightly", "source": {"table": "public.cache", "op": "truncate", "ordinal": 4}},
    "current": null, "original": null}
-> {"entity": "cache", "key": "3", "partition": 1,
    "provenance": {"apiVersion": "v2", "serviceName": "cache-keeper", "identifier": "nightly", "source": {"table": "public.cache", "op": "create", "ordinal": 6}},
    "current": {"id":3}}

-- A TRUNCATE of a table that is not published causes no message.
TRUNCATE elsewhere;

-- The policy of the table `orders` is to stop. Changes before the TRUNCATE in the log are published, later ones wait.
BEGIN;
INSERT INTO orders VALUES (1);
COMMIT;
-> {"entity": "orders", "key": "1", "provenance": {"source": {"table": "public.orders", "op": "create", "ordinal": 0}},
    "current": {"id":1}}

TRUNCATE orders, item;
-> {"stop": "the table public.orders was truncated"}

--> accept skip
-> {"entity": "item", "key": "\u0000truncate",
    "provenance": {"source": {"table": "public.item", "op": "truncate", "ordinal": 0}}, "current": null, "original": null}

INSERT INTO orders VALUES (2);
-> {"entity": "orders", "key": "2", "provenance": {"source": {"table": "public.orders", "op": "create", "ordinal": 0}},
    "current": {"id":2}}

TRUNCATE orders CASCADE;
-> {"stop": "the table public.orders was truncated"}

-- The TRUNCATE is sent to the dead letters, where somebody can look at it.
--> accept dead-letter
-> {"entity": "dead", "key": "orders",
    "provenance": {"source": {"table": "public.orders", "op": "truncate", "ordinal": 0}}, "current": null,
    "original": null}
-> {"entity": "item", "key": "\u0000truncate",
    "provenance": {"source": {"table": "public.item", "op": "truncate", "ordinal": 0}}, "current": null, "original": null}
