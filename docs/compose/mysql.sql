-- Creates what docker-compose.yml publishes from MySQL and MariaDB: two tables, the tables for signals and stamps, and
-- a database user for the service, which has only the rights that the service needs.
CREATE TABLE guest (
    id bigint AUTO_INCREMENT PRIMARY KEY,
    name varchar(100) NOT NULL,
    loyalty varchar(20) NOT NULL DEFAULT 'none'
);
CREATE TABLE orders (
    id bigint AUTO_INCREMENT PRIMARY KEY,
    guest_id bigint NOT NULL,
    room varchar(20) NOT NULL,
    nights int NOT NULL,
    amount decimal(10, 2) NOT NULL,
    status varchar(20) NOT NULL DEFAULT 'NEW',
    FOREIGN KEY (guest_id) REFERENCES guest (id)
);
CREATE TABLE changelog_signal (id bigint PRIMARY KEY, content mediumtext CHARACTER SET utf8mb4 NOT NULL);
CREATE TABLE changelog_stamp (id bigint PRIMARY KEY, content mediumtext CHARACTER SET utf8mb4 NOT NULL);

INSERT INTO guest (name)
WITH RECURSIVE number (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number WHERE n < 100)
SELECT concat('Guest ', n) FROM number;
INSERT INTO orders (guest_id, room, nights, amount)
WITH RECURSIVE number (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number WHERE n < 300)
SELECT 1 + n % 100, elt(1 + n % 3, 'single', 'double', 'suite'), 1 + n % 5, 90 + n FROM number;

CREATE USER 'changelog_run'@'%' IDENTIFIED BY 'changelog';
GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO 'changelog_run'@'%';
GRANT SELECT ON booking.guest TO 'changelog_run'@'%';
GRANT SELECT ON booking.orders TO 'changelog_run'@'%';
GRANT INSERT ON booking.changelog_signal TO 'changelog_run'@'%';
