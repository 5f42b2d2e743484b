-- If an exception block of PL/pgSQL catches an exception, what the block did before is rolled back and not published.
--# [entities.orders]
--# table = "public.orders"

CREATE TABLE orders (id int PRIMARY KEY, status text);
ALTER TABLE orders REPLICA IDENTITY FULL;

--> run

-- PostgreSQL runs an exception block as a savepoint.
DO $$
BEGIN
  INSERT INTO orders VALUES (12, 'kept');
  BEGIN
    INSERT INTO orders VALUES (13, 'dropped');
    INSERT INTO orders VALUES (12, 'duplicate');
  EXCEPTION WHEN unique_violation THEN
    INSERT INTO orders VALUES (14, 'handled');
  END;
END
$$;
-> {"entity": "orders", "key": "12", "provenance": {"source": {"table": "public.orders", "op": "create", "ordinal": 0}},
    "current": {"id":12,"status":"kept"}}
-> {"entity": "orders", "key": "14", "provenance": {"source": {"table": "public.orders", "op": "create", "ordinal": 2}},
    "current": {"id":14,"status":"handled"}}
