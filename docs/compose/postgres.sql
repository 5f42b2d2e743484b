-- Creates two tables in the database of docker-compose.yml. The service publishes the changes of these tables.
CREATE TABLE guest (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL,
    loyalty text NOT NULL DEFAULT 'none'
);
CREATE TABLE orders (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    guest_id bigint NOT NULL REFERENCES guest,
    room text NOT NULL,
    nights int NOT NULL,
    amount numeric(10, 2) NOT NULL,
    status text NOT NULL DEFAULT 'NEW'
);
ALTER TABLE guest REPLICA IDENTITY FULL;
ALTER TABLE orders REPLICA IDENTITY FULL;

INSERT INTO guest (name) SELECT 'Guest ' || n FROM generate_series(1, 100) n;
INSERT INTO orders (guest_id, room, nights, amount)
SELECT 1 + n % 100, (ARRAY['single', 'double', 'suite'])[1 + n % 3], 1 + n % 5, 90 + n FROM generate_series(1, 300) n;
