-- The tables of the outbox, version 1.
-- Static: queue, partition. Append-only: incoming, tick, outgoing, cursor.
-- Differs from the PostgreSQL version in that there are no stamps: there is one writer at a time, so ids are in the order of
-- commits, and a tick remembers the last one it took. Times are microseconds since 1970, by a clock of milliseconds; lists of
-- ids are JSON. What is found by a key that is not its number has no other: WITHOUT ROWID.

CREATE TABLE {meta} (
    singleton      INTEGER PRIMARY KEY DEFAULT 1 CHECK (singleton = 1),
    schema_version INTEGER NOT NULL,
    -- The oldest library, by the schema version it is for, that may work with these tables.
    least_library  INTEGER NOT NULL,
    -- Names this outbox.
    outbox_id      BLOB    NOT NULL
) STRICT;

CREATE TABLE {queue} (
    id         INTEGER PRIMARY KEY,
    name       TEXT    NOT NULL COLLATE BINARY UNIQUE,
    partitions INTEGER NOT NULL,
    created_at INTEGER NOT NULL DEFAULT ({now}),
    -- Since when nothing of it is delivered, if so.
    paused_at  INTEGER
) STRICT;

CREATE TABLE {partition} (
    id       INTEGER PRIMARY KEY,
    queue_id INTEGER NOT NULL REFERENCES {queue_name} (id),
    number   INTEGER NOT NULL,
    UNIQUE (queue_id, number)
) STRICT;

-- A message. AUTOINCREMENT: no id is given out twice, not even that of a newest message that was removed. The payload is
-- last: who looks for the rest does not read it.
CREATE TABLE {incoming} (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    partition_id INTEGER NOT NULL,
    created_at   INTEGER NOT NULL DEFAULT ({now}),
    payload_type TEXT    NOT NULL,
    key          TEXT,
    headers      TEXT,
    payload      BLOB    NOT NULL
) STRICT;

-- What the sequencer has seen: a chain, the newest link is the state.
CREATE TABLE {tick} (
    id      INTEGER PRIMARY KEY,
    -- All messages up to this id have their seqs.
    last_id INTEGER NOT NULL
) STRICT;

-- A segment: up to 256 message ids in the order of their seqs, which run from first_seq to last_seq.
CREATE TABLE {outgoing} (
    partition_id INTEGER NOT NULL,
    last_seq     INTEGER NOT NULL,
    first_seq    INTEGER NOT NULL,
    sequenced_at INTEGER NOT NULL DEFAULT ({now}),
    ids          TEXT    NOT NULL,
    PRIMARY KEY (partition_id, last_seq)
) STRICT, WITHOUT ROWID;

-- How far a partition has been settled: a chain, the newest link is the state.
CREATE TABLE {cursor} (
    reader        TEXT    NOT NULL COLLATE BINARY,
    partition_id  INTEGER NOT NULL,
    epoch         INTEGER NOT NULL,
    processed_seq INTEGER NOT NULL,
    -- Tries of message processed_seq + 1, the one under way included.
    attempts      INTEGER NOT NULL,
    owner         BLOB,
    lease_until   INTEGER,
    lease_ms      INTEGER,
    last_error    TEXT,
    PRIMARY KEY (reader, partition_id, epoch)
) STRICT, WITHOUT ROWID;

CREATE TABLE {dead_letter} (
    id           INTEGER PRIMARY KEY,
    partition_id INTEGER NOT NULL,
    seq          INTEGER NOT NULL,
    queue        TEXT    NOT NULL COLLATE BINARY,
    partition    INTEGER NOT NULL,
    payload_type TEXT    NOT NULL,
    key          TEXT,
    headers      TEXT,
    payload      BLOB    NOT NULL,
    created_at   INTEGER NOT NULL,
    attempts     INTEGER NOT NULL,
    reason       TEXT    NOT NULL,
    -- pending, reprocessing, resolved or discarded.
    status         TEXT    NOT NULL DEFAULT 'pending',
    rejected_at    INTEGER NOT NULL DEFAULT ({now}),
    -- When the status last changed.
    changed_at     INTEGER NOT NULL DEFAULT ({now}),
    -- Who reprocesses it may say how that ended only with this; and until then nobody else has it.
    token          BLOB,
    claimed_until  INTEGER,
    -- The message that it went back into its queue as.
    redelivered_as INTEGER
) STRICT;
CREATE INDEX {dead_letter_queue} ON {dead_letter_name} (queue, status, id);
CREATE INDEX {dead_letter_status} ON {dead_letter_name} (status, id);

INSERT INTO {meta} (schema_version, least_library, outbox_id) VALUES (1, 1, randomblob(16));
-- Every id is above 0, so everything is new to this tick.
INSERT INTO {tick} (id, last_id) VALUES (0, 0);
