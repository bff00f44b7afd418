-- Tallies: sums over the jobs that ended in a bar and have no record of their own in the rhythm.

-- name: count
-- Add tallies (?4) of an agent (?3) to those of their bars.
WITH given AS MATERIALIZED (SELECT value AS v FROM json_each(?4))
INSERT INTO job_tallies (
    scope_id, repository_id, agent_id, window_ms, is_scored, done, failed, done_beats, failed_beats, bu, cost, cpu_sec,
    mem_gbs, io_mb, delays)
SELECT ?1, ?2, ?3, v ->> 0, v ->> 1, v ->> 2, v ->> 3, v ->> 4, v ->> 5, v ->> 6, v ->> 7, v ->> 8, v ->> 9,
    v ->> 10, v ->> 11
FROM given WHERE true
ON CONFLICT (scope_id, repository_id, window_ms, agent_id, is_scored) DO UPDATE SET
    done = done + excluded.done, failed = failed + excluded.failed,
    done_beats = done_beats + excluded.done_beats, failed_beats = failed_beats + excluded.failed_beats,
    bu = bu + excluded.bu, cost = cost + excluded.cost, cpu_sec = cpu_sec + excluded.cpu_sec,
    mem_gbs = mem_gbs + excluded.mem_gbs, io_mb = io_mb + excluded.io_mb,
    delays = (
        SELECT json_group_object(key, jobs) FROM (
            SELECT key, sum(value) AS jobs FROM (
                SELECT key, value FROM json_each(job_tallies.delays)
                UNION ALL SELECT key, value FROM json_each(excluded.delays))
            GROUP BY key))
