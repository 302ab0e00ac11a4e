-- The tables of the outbox, version 1.
-- Static: queue, partition. Append-only: incoming, tick, outgoing, cursor. No foreign keys between what moves: their
-- locks would make producers and the sequencer wait for each other.

CREATE TABLE {meta} (
    singleton      boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    schema_version integer NOT NULL,
    -- The oldest library, by the schema version it is for, that may work with these tables.
    least_library  integer NOT NULL,
    -- Names this outbox: the channel of its notifications, the key of its advisory lock.
    outbox_id      uuid    NOT NULL
);

CREATE TABLE {queue} (
    id         integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name       text COLLATE "C" NOT NULL UNIQUE,
    partitions integer NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- Since when nothing of it is delivered, if so.
    paused_at  timestamptz
);

CREATE TABLE {partition} (
    id       integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue_id integer NOT NULL REFERENCES {queue} (id),
    number   integer NOT NULL,
    UNIQUE (queue_id, number)
);

-- A message. The identity must not be cached: ids follow the order of enqueueing within a transaction and between
-- transactions that follow each other, whichever sessions they are in.
CREATE TABLE {incoming} (
    id           bigint GENERATED ALWAYS AS IDENTITY (CACHE 1) PRIMARY KEY,
    stamp        xid8        NOT NULL DEFAULT pg_current_xact_id(),
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    partition_id integer     NOT NULL,
    payload_type text        NOT NULL,
    key          text,
    headers      text,
    payload      bytea       NOT NULL
);
CREATE INDEX {incoming_stamp} ON {incoming} (stamp);

-- What the sequencer has seen: a chain, the newest link is the state.
CREATE TABLE {tick} (
    id       bigint PRIMARY KEY,
    seen     pg_snapshot NOT NULL,
    -- Where the stamps and the snapshot have a meaning; elsewhere, after a restore, they have none.
    cluster  bigint NOT NULL,
    incoming oid    NOT NULL
);

-- A segment: up to 256 message ids in the order of their seqs, the last of which is last_seq.
CREATE TABLE {outgoing} (
    partition_id integer NOT NULL,
    last_seq     bigint  NOT NULL,
    sequenced_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    ids          bigint[] NOT NULL,
    PRIMARY KEY (partition_id, last_seq)
);
-- A full segment is a little over what would be compressed and moved out of line, on each write and each read.
ALTER TABLE {outgoing} ALTER COLUMN ids SET STORAGE PLAIN;

-- How far a partition has been settled: a chain, the newest link is the state.
CREATE TABLE {cursor} (
    reader        text COLLATE "C" NOT NULL,
    partition_id  integer NOT NULL,
    epoch         bigint  NOT NULL,
    processed_seq bigint  NOT NULL,
    -- Tries of message processed_seq + 1, the one under way included.
    attempts      integer NOT NULL,
    owner         uuid,
    lease_until   timestamptz,
    lease_ms      bigint,
    last_error    text,
    PRIMARY KEY (reader, partition_id, epoch)
);

CREATE TABLE {dead_letter} (
    id           bigint PRIMARY KEY,
    partition_id integer     NOT NULL,
    seq          bigint      NOT NULL,
    queue        text        COLLATE "C" NOT NULL,
    partition    integer     NOT NULL,
    payload_type text        NOT NULL,
    key          text,
    headers      text,
    payload      bytea       NOT NULL,
    created_at   timestamptz NOT NULL,
    attempts     integer     NOT NULL,
    reason       text        NOT NULL,
    -- pending, reprocessing, resolved or discarded.
    status         text        NOT NULL DEFAULT 'pending',
    rejected_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- When the status last changed.
    changed_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- Who reprocesses it may say how that ended only with this; and until then nobody else has it.
    token          uuid,
    claimed_until  timestamptz,
    -- The message that it went back into its queue as.
    redelivered_as bigint
);
CREATE INDEX {dead_letter_queue} ON {dead_letter} (queue, status, id);
CREATE INDEX {dead_letter_status} ON {dead_letter} (status, id);

INSERT INTO {meta} (schema_version, least_library, outbox_id) VALUES (1, 1, gen_random_uuid());
-- Every stamp is at or after 3, the first there is, so everything is new to this snapshot.
INSERT INTO {tick} (id, seen, cluster, incoming)
SELECT 0, '3:3:', system_identifier, {incoming_literal}::regclass::oid FROM pg_control_system();
