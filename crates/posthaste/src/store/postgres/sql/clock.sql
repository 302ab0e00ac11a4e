-- What time it is by the database's clock, in microseconds since 1970: now, not when the transaction began.
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now_us
