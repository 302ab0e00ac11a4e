-- Standbys that keep dead rows alive for the sake of what they read: by a slot, or by what they report. A catalog_xmin is no
-- matter: it is about the catalog, not about our tables.
-- Reads pg_replication_slots, and pg_stat_replication, which is blank without pg_read_all_stats.
SELECT true AS is_slot, slot_name::text AS name, active AS is_active, age(xmin)::int4 AS age
FROM pg_replication_slots
WHERE xmin IS NOT NULL
UNION ALL
SELECT false, coalesce(application_name, ''), true, age(backend_xmin)::int4
FROM pg_stat_replication
WHERE backend_xmin IS NOT NULL
ORDER BY age DESC
