-- The tables of the outbox, version 1.
-- Differs from the PostgreSQL version in that no DDL can be rolled back here: each statement may be run again after it was
-- done, and the row of meta, which says that all is there, comes last. Times are microseconds since 1970 in UTC, so no time
-- zone and no SQL mode changes them. What is compared is compared byte by byte, whatever the server's default. Messages
-- that have no seq yet are in pending, since no statement can tell which rows became visible since the last tick.

CREATE TABLE IF NOT EXISTS {meta} (
    singleton      TINYINT  NOT NULL PRIMARY KEY,
    schema_version INT      NOT NULL,
    -- The oldest library, by the schema version it is for, that may work with these tables.
    least_library  INT      NOT NULL,
    outbox_id      CHAR(36) NOT NULL
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE IF NOT EXISTS {queue} (
    id         INT          NOT NULL AUTO_INCREMENT PRIMARY KEY,
    name       VARCHAR(128) NOT NULL UNIQUE,
    partitions INT          NOT NULL,
    created_at BIGINT       NOT NULL,
    -- Since when nothing of it is delivered, if so.
    paused_at  BIGINT
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE IF NOT EXISTS {partition} (
    id       INT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    queue_id INT NOT NULL,
    number   INT NOT NULL,
    UNIQUE KEY queue_number (queue_id, number)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- A message. The tag is a number of the call that wrote it, by which MySQL finds the ids it gave; MariaDB returns them.
CREATE TABLE IF NOT EXISTS {incoming} (
    id           BIGINT       NOT NULL AUTO_INCREMENT PRIMARY KEY,
    tag          BIGINT,
    created_at   BIGINT       NOT NULL,
    partition_id INT          NOT NULL,
    payload_type VARCHAR(255) NOT NULL,
    `key`        VARCHAR(255),
    headers      MEDIUMTEXT,
    payload      LONGBLOB     NOT NULL
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- The messages that have no seq yet, in runs: up to 256 whose ids go from id to last_id without a hole, and the partition of each,
-- as the text of an array. Written in the transaction that writes the messages, removed by the tick that takes them.
CREATE TABLE IF NOT EXISTS {pending} (
    id         BIGINT NOT NULL PRIMARY KEY,
    last_id    BIGINT NOT NULL,
    partitions TEXT   NOT NULL
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- A chain: whoever appends the next link ticks, and nobody else meanwhile.
CREATE TABLE IF NOT EXISTS {tick} (
    id BIGINT NOT NULL PRIMARY KEY
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- A segment: up to 256 message ids in the order of their seqs, from first_seq to last_seq, as the text of an array.
CREATE TABLE IF NOT EXISTS {outgoing} (
    partition_id INT    NOT NULL,
    first_seq    BIGINT NOT NULL,
    last_seq     BIGINT NOT NULL,
    sequenced_at BIGINT NOT NULL,
    ids          TEXT   NOT NULL,
    PRIMARY KEY (partition_id, last_seq)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- How far a partition has been settled: a chain, the newest link is the state.
CREATE TABLE IF NOT EXISTS {cursor} (
    reader        VARCHAR(64) NOT NULL,
    partition_id  INT         NOT NULL,
    epoch         BIGINT      NOT NULL,
    processed_seq BIGINT      NOT NULL,
    -- Tries of message processed_seq + 1, the one under way included.
    attempts      INT         NOT NULL,
    owner         BINARY(16),
    lease_until   BIGINT,
    lease_ms      BIGINT,
    last_error    TEXT,
    PRIMARY KEY (reader, partition_id, epoch)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE IF NOT EXISTS {dead_letter} (
    id           BIGINT       NOT NULL PRIMARY KEY,
    partition_id INT          NOT NULL,
    seq          BIGINT       NOT NULL,
    queue        VARCHAR(128) NOT NULL,
    `partition`  INT          NOT NULL,
    payload_type VARCHAR(255) NOT NULL,
    `key`        VARCHAR(255),
    headers      MEDIUMTEXT,
    payload      LONGBLOB     NOT NULL,
    created_at   BIGINT       NOT NULL,
    attempts     INT          NOT NULL,
    reason       TEXT         NOT NULL,
    -- pending, reprocessing, resolved or discarded.
    status         VARCHAR(32) NOT NULL DEFAULT 'pending',
    rejected_at    BIGINT      NOT NULL,
    -- When the status last changed.
    changed_at     BIGINT      NOT NULL,
    -- Who reprocesses it may say how that ended only with this; and until then nobody else has it.
    token          BINARY(16),
    claimed_until  BIGINT,
    -- The message that it went back into its queue as.
    redelivered_as BIGINT,
    KEY queue_status (queue, status, id),
    KEY status (status, id)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

INSERT IGNORE INTO {tick} (id) VALUES (0);

INSERT IGNORE INTO {meta} (singleton, schema_version, least_library, outbox_id) VALUES (1, 1, 1, UUID());
