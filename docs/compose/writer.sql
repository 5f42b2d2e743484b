-- The writer of docker-compose.yml runs this script twice a second: three services change orders and guests, each in a
-- transaction of its own that begins with the service's provenance stamp.
BEGIN;
SELECT pg_logical_emit_message(true, 'provenance', json_build_object(
    'apiVersion', 'v2', 'serviceName', 'order-api', 'identifier', 'req-' || left(md5(random()::text), 6))::text);
INSERT INTO orders (guest_id, room, nights, amount)
SELECT guest, (ARRAY['single', 'double', 'suite'])[1 + guest % 3], nights, 90 * nights
FROM (SELECT 1 + floor(random() * 100)::int AS guest, 1 + floor(random() * 5)::int AS nights) AS stay;
UPDATE orders SET status = 'PAID'
WHERE id IN (SELECT id FROM orders WHERE status = 'NEW' ORDER BY random() LIMIT 2);
COMMIT;

BEGIN;
SELECT pg_logical_emit_message(true, 'provenance', json_build_object(
    'apiVersion', 'v1', 'serviceName', 'loyalty-job', 'identifier', 'run-' || current_date)::text);
UPDATE guest SET loyalty = (ARRAY['none', 'silver', 'gold'])[1 + floor(random() * 3)::int]
WHERE id = (SELECT 1 + floor(random() * 100)::int);
COMMIT;

BEGIN;
SELECT pg_logical_emit_message(true, 'provenance', json_build_object(
    'apiVersion', 'v2', 'serviceName', 'cleanup-job', 'identifier', 'run-' || current_date)::text);
DELETE FROM orders WHERE id IN (SELECT id FROM orders WHERE status = 'PAID' ORDER BY id LIMIT 1);
COMMIT;
