-- Bar reports: which bars are due, their figures, and the stored reports.
--
-- A window is a bar, identified by its start; a report covers all windows from `window_ms` to `until_ms`.

-- part: OF_MESH
-- ?1: scope, ?2: repository
scope_id = ?1 AND repository_id = ?2

-- part: UNTIL
-- Where the last report ends.
coalesce((SELECT until_ms FROM bar_reports WHERE OF_MESH ORDER BY window_ms DESC, revision DESC LIMIT 1), ?3)

-- part: LIVE
-- Nodes that have neither left nor died.
mesh_heartbeats WHERE OF_MESH AND left_ms IS NULL AND last_seen_ms + spare_ms > NOW_MS - ?6 * tick_ms

-- part: MACHINES
-- The utilisation that the live nodes report, machine by machine.
(SELECT max(v.cpu_utilisation) FILTER (WHERE v.cpu_utilisation BETWEEN 0 AND 1) AS cpu,
    max(v.gpu_utilisation) FILTER (WHERE v.gpu_utilisation BETWEEN 0 AND 1) AS gpu
FROM (SELECT node_id, machine_id FROM LIVE) AS n
JOIN node_vitals AS v ON v.scope_id = ?1 AND v.repository_id = ?2 AND v.node_id = n.node_id
GROUP BY n.machine_id)

-- name: due
-- ?3: the start of the search, ?4: bars that begin from here on have not ended, ?5: the maximum of bars at once,
-- ?6: ticks after which a node is dead, ?7: what ended before this is not late.
SELECT
    (SELECT json_array(window_ms, until_ms, document ->> '$.is_missing', (
            SELECT sum(value) FROM json_each(document, '$.tasks') WHERE key NOT IN ('done', 'failed')))
        FROM bar_reports WHERE OF_MESH ORDER BY window_ms DESC, revision DESC LIMIT 1) AS last,
    (SELECT coalesce(max(serial), 0) FROM status_claims WHERE OF_MESH) AS serial,
    -- Bars with something to report, and without a report.
    (SELECT json_group_array(window_ms) FROM (
        SELECT window_ms FROM (
            SELECT * FROM (
                SELECT DISTINCT window_ms FROM status_claims
                WHERE OF_MESH AND window_ms >= max(?3, UNTIL) AND window_ms < ?4 ORDER BY window_ms LIMIT ?5)
            UNION SELECT * FROM (
                SELECT DISTINCT window_ms FROM phrase_ends
                WHERE OF_MESH AND window_ms >= max(?3, UNTIL) AND window_ms < ?4 ORDER BY window_ms LIMIT ?5)
            UNION SELECT * FROM (
                SELECT DISTINCT window_ms FROM job_tallies
                WHERE OF_MESH AND window_ms >= max(?3, UNTIL) AND window_ms < ?4 ORDER BY window_ms LIMIT ?5)
            UNION SELECT * FROM (
                SELECT ended_ms FROM help_threads INDEXED BY help_threads_ended
                WHERE OF_MESH AND ended_ms IS NOT NULL AND ended_ms >= max(?3, UNTIL) AND ended_ms < ?4
                ORDER BY ended_ms LIMIT ?5))
        ORDER BY window_ms LIMIT ?5)) AS unreported,
    -- Bars with claims that came after the last report.
    (SELECT json_group_array(json_array(window_ms, first)) FROM (
        SELECT window_ms, min(serial) AS first FROM status_claims INDEXED BY status_claims_serial
        WHERE OF_MESH AND serial > (SELECT coalesce(max(through_serial), 0) FROM bar_reports WHERE OF_MESH)
          AND window_ms >= ?3 AND window_ms < UNTIL
        GROUP BY window_ms ORDER BY first LIMIT ?5)) AS late,
    -- Phrases and counted jobs have no serial, but are not removed: there are more than were reported.
    (SELECT json_group_array(window_ms) FROM (
        SELECT window_ms FROM (
            SELECT * FROM (
                SELECT p.window_ms FROM (
                    SELECT window_ms, count(*) AS phrases FROM phrase_ends
                    WHERE OF_MESH AND window_ms >= ?7 AND window_ms < UNTIL GROUP BY window_ms) AS p
                WHERE p.phrases > (
                    SELECT r.phrases FROM bar_reports AS r
                    WHERE r.scope_id = ?1 AND r.repository_id = ?2 AND r.window_ms <= p.window_ms
                    ORDER BY r.window_ms DESC, r.revision DESC LIMIT 1)
                ORDER BY p.window_ms LIMIT ?5)
            UNION SELECT * FROM (
                SELECT p.window_ms FROM (
                    SELECT window_ms, sum(done + failed) AS jobs FROM job_tallies
                    WHERE OF_MESH AND window_ms >= ?7 AND window_ms < UNTIL GROUP BY window_ms) AS p
                WHERE p.jobs > (
                    SELECT r.jobs FROM bar_reports AS r
                    WHERE r.scope_id = ?1 AND r.repository_id = ?2 AND r.window_ms <= p.window_ms
                    ORDER BY r.window_ms DESC, r.revision DESC LIMIT 1)
                ORDER BY p.window_ms LIMIT ?5))
        ORDER BY window_ms LIMIT ?5)) AS late_phrases,
    -- Neither have threads, which are closed later than they end: reports that do not include all of theirs.
    (SELECT json_group_array(json(ends)) FROM (
        SELECT t.held_ms, json_group_array(t.ended_ms) AS ends FROM (
            SELECT ended_ms, (
                SELECT r.window_ms FROM bar_reports AS r
                WHERE r.scope_id = ?1 AND r.repository_id = ?2 AND r.window_ms <= ended_ms
                ORDER BY r.window_ms DESC LIMIT 1) AS held_ms
            FROM help_threads INDEXED BY help_threads_ended
            WHERE OF_MESH AND ended_ms IS NOT NULL AND ended_ms >= ?7 AND ended_ms < UNTIL) AS t
        GROUP BY t.held_ms HAVING count(*) > (
            SELECT r.threads FROM bar_reports AS r
            WHERE r.scope_id = ?1 AND r.repository_id = ?2 AND r.window_ms = t.held_ms
            ORDER BY r.revision DESC LIMIT 1)
        ORDER BY t.held_ms LIMIT ?5)) AS late_threads,
    (SELECT coalesce(sum(jobs), 0) FROM job_counts WHERE OF_MESH AND state = 'pending') AS queue_depth,
    (SELECT json_group_object(kind, jobs) FROM (
        SELECT CAST(kind AS TEXT) AS kind, sum(jobs) AS jobs FROM job_counts
        WHERE OF_MESH AND state = 'pending' AND jobs > 0
        GROUP BY kind ORDER BY jobs DESC, kind LIMIT 16)) AS queue_by_kind,
    (SELECT round(avg(cpu), 2) FROM MACHINES) AS cpu_utilisation,
    (SELECT round(avg(gpu), 2) FROM MACHINES) AS gpu_utilisation,
    (SELECT coalesce(sum(capacity), 0) FROM LIVE) AS places,
    (SELECT coalesce(sum(load), 0) FROM LIVE) AS load,
    (SELECT max(abs(clock_distance_ms)) FROM LIVE) AS clock_distance_ms,
    -- The newest claim and the last report are never pruned.
    (SELECT window_ms FROM status_claims
        WHERE OF_MESH AND serial < (SELECT max(serial) FROM status_claims WHERE OF_MESH)
        ORDER BY window_ms LIMIT 1) AS oldest_claim_ms,
    (SELECT min(batch) / 1024 FROM status_signatures WHERE OF_MESH) AS oldest_signature_ms,
    (SELECT until_ms FROM bar_reports
        WHERE OF_MESH AND window_ms < (SELECT max(window_ms) FROM bar_reports WHERE OF_MESH)
        ORDER BY window_ms, revision LIMIT 1) AS oldest_report_ms

-- name: holding
-- The reports that cover these moments (?3), each in its last revision, and where its first one ended.
SELECT DISTINCT r.window_ms, r.revision, r.until_ms, r.is_missing, r.document, (
    SELECT first.through_serial FROM bar_reports AS first
    WHERE first.scope_id = ?1 AND first.repository_id = ?2 AND first.window_ms = r.window_ms
    ORDER BY first.revision LIMIT 1) AS first_serial
FROM json_each(?3) AS moment
JOIN bar_reports AS r ON r.scope_id = ?1 AND r.repository_id = ?2 AND r.window_ms = (
    SELECT window_ms FROM bar_reports WHERE OF_MESH AND window_ms <= moment.value ORDER BY window_ms DESC LIMIT 1)
WHERE r.until_ms > moment.value AND r.revision = (
    SELECT max(revision) FROM bar_reports AS other
    WHERE other.scope_id = ?1 AND other.repository_id = ?2 AND other.window_ms = r.window_ms)

-- name: next
-- Where the first report after a moment (?3) begins.
SELECT min(window_ms) FROM bar_reports WHERE OF_MESH AND window_ms > ?3

-- part: CLAIMS
-- The claims of a bar `w`.
status_claims AS c
WHERE c.scope_id = ?1 AND c.repository_id = ?2 AND c.window_ms >= w.start_ms AND c.window_ms < w.end_ms

-- part: PHRASES
-- The phrases that ended in it.
phrase_ends AS p WHERE p.scope_id = ?1 AND p.repository_id = ?2 AND p.window_ms >= w.start_ms AND p.window_ms < w.end_ms

-- part: PACKED
-- A claim's state as a number of which 1,023 can be added up: no bar has that many beats.
CASE c.state WHEN 'planning' THEN 1 WHEN 'executing' THEN 1 << 10 WHEN 'waiting' THEN 1 << 20
    WHEN 'review' THEN 1 << 30 WHEN 'done' THEN 1 << 40 ELSE 1 << 50 END

-- part: TASKS
-- Its tasks, in the order of the claims' key, so that nothing is sorted. SQLite takes the state, and the other
-- columns without an aggregate, from the row with the maximum: the last claim.
SELECT c.agent_id, c.task_id, c.state, c.began_ms, c.useful_ms, max(c.epoch_ms), sum(PACKED) AS beats,
    sum(iif(c.overran, PACKED, 0)) AS overruns
FROM CLAIMS GROUP BY c.window_ms, c.agent_id, c.task_id

-- name: figures
-- The figures of each of these bars (?3: its start and end, the start of the previous one, and the serial up to
-- which claims are not late). A bar's claims are read as rarely as possible: there may be tens of thousands.
WITH w (start_ms, end_ms, before_ms, through_serial) AS MATERIALIZED (
    SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3 FROM json_each(?3))
SELECT start_ms,
    -- Reporters; by state, tasks at their last claim, beats, and overruns; and the start of finished tasks
    -- and their first useful result.
    (SELECT json_array(
            count(DISTINCT agent_id),
            json_object(
                'planning', sum(state = 'planning'), 'executing', sum(state = 'executing'),
                'waiting', sum(state = 'waiting'), 'review', sum(state = 'review'),
                'done', sum(state = 'done'), 'failed', sum(state = 'failed')),
            json_object(
                'planning', sum(beats & 1023), 'executing', sum(beats >> 10 & 1023),
                'waiting', sum(beats >> 20 & 1023), 'review', sum(beats >> 30 & 1023),
                'done', sum(beats >> 40 & 1023), 'failed', sum(beats >> 50 & 1023)),
            json_object(
                'planning', sum(overruns & 1023), 'executing', sum(overruns >> 10 & 1023),
                'waiting', sum(overruns >> 20 & 1023), 'review', sum(overruns >> 30 & 1023),
                'done', sum(overruns >> 40 & 1023), 'failed', sum(overruns >> 50 & 1023)),
            json_group_array(json_array(began_ms, useful_ms)) FILTER (
                WHERE state = 'done' AND useful_ms IS NOT NULL AND NOT EXISTS (
                    SELECT 1 FROM phrase_ends AS p INDEXED BY phrase_ends_of_agent
                    WHERE p.scope_id = ?1 AND p.repository_id = ?2 AND p.agent_id = k.agent_id
                      AND p.ended_ms >= w.start_ms AND p.ended_ms < w.end_ms AND p.task_id = k.task_id)))
        FROM (TASKS) AS k) AS tasks,
    iif(through_serial IS NULL, '[]', (SELECT json_group_array(agent_id) FROM (
        SELECT DISTINCT c.agent_id FROM CLAIMS AND c.serial > w.through_serial))) AS late,
    -- Agents with work in the previous bar. Few claims belong to a bar which began within this one.
    (SELECT json_group_array(DISTINCT agent_id) FROM (
        SELECT b.agent_id, b.state, max(b.epoch_ms) FROM status_claims AS b
        WHERE b.scope_id = ?1 AND b.repository_id = ?2 AND b.window_ms >= w.before_ms AND b.window_ms < w.start_ms
        GROUP BY b.window_ms, b.agent_id, b.task_id) AS k
        WHERE state NOT IN ('done', 'failed') AND NOT EXISTS (
            SELECT 1 FROM status_claims AS c
            WHERE c.scope_id = ?1 AND c.repository_id = ?2 AND c.window_ms = w.start_ms AND c.agent_id = k.agent_id)
          AND NOT EXISTS (
            SELECT 1 FROM status_claims AS c
            WHERE c.scope_id = ?1 AND c.repository_id = ?2 AND c.window_ms > w.start_ms AND c.window_ms < w.end_ms
              AND c.agent_id = k.agent_id)) AS missing,
    -- Of phrases: outcomes, overruns, cost, and how many finished a task without a claim.
    (SELECT json_array(
            json_object(
                'done', count(*) FILTER (WHERE p.outcome = 'done'),
                'degraded', count(*) FILTER (WHERE p.outcome = 'degraded'),
                'deferred', count(*) FILTER (WHERE p.outcome = 'deferred'),
                'failed', count(*) FILTER (WHERE p.outcome = 'failed')),
            coalesce(sum(p.overruns), 0), coalesce(sum(p.cost), 0.0),
            count(DISTINCT p.agent_id || char(10) || p.task_id) FILTER (
                WHERE p.outcome IN ('done', 'degraded') AND coalesce((
                    SELECT c.state FROM status_claims AS c
                    WHERE c.scope_id = ?1 AND c.repository_id = ?2 AND c.window_ms = p.window_ms
                      AND c.agent_id = p.agent_id AND c.task_id = p.task_id
                    ORDER BY c.epoch_ms DESC LIMIT 1), '') <> 'done'),
            json_group_array(json_array(p.began_ms, p.first_useful_ms)) FILTER (
                WHERE p.first_useful_ms IS NOT NULL))
        FROM PHRASES) AS phrases,
    -- Of jobs that are only counted: with a score, done, failed, their beats, cost, delays, and agents without claims.
    (SELECT json_array(
            coalesce(sum(iif(t.is_scored, t.done, 0)), 0), coalesce(sum(t.done), 0), coalesce(sum(t.failed), 0),
            coalesce(sum(t.done_beats), 0), coalesce(sum(t.failed_beats), 0), total(t.cost),
            json_group_array(json(t.delays)),
            count(DISTINCT t.agent_id) FILTER (WHERE t.is_scored AND NOT EXISTS (
                SELECT 1 FROM CLAIMS AND c.agent_id = t.agent_id)))
        FROM job_tallies AS t
        WHERE t.scope_id = ?1 AND t.repository_id = ?2 AND t.window_ms >= w.start_ms AND t.window_ms < w.end_ms) AS jobs,
    (SELECT json_group_object(state, threads) FROM (
        SELECT t.state, count(*) AS threads FROM help_threads AS t INDEXED BY help_threads_ended
        WHERE t.scope_id = ?1 AND t.repository_id = ?2 AND t.ended_ms IS NOT NULL
          AND t.ended_ms >= w.start_ms AND t.ended_ms < w.end_ms
        GROUP BY t.state)) AS promises
FROM w

-- name: unfinished
-- Of these bars (?3: the start and end of each), the ones with unfinished tasks, which the next bar should report.
SELECT w.value ->> 1 AS end_ms FROM json_each(?3) AS w
WHERE EXISTS (
    SELECT 1 FROM (
        SELECT c.state, max(c.epoch_ms) FROM status_claims AS c
        WHERE c.scope_id = ?1 AND c.repository_id = ?2
          AND c.window_ms >= w.value ->> 0 AND c.window_ms < w.value ->> 1
        GROUP BY c.window_ms, c.agent_id, c.task_id) AS k
    WHERE k.state NOT IN ('done', 'failed'))

-- name: write
-- Store reports, except existing revisions.
INSERT INTO bar_reports (
    scope_id, repository_id, node_id, hlc, through_serial, reported_ms, window_ms, revision, window_id, until_ms,
    is_missing, phrases, threads, document, jobs)
SELECT ?1, ?2, ?3, ?4, ?5, NOW_MS, value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5,
    value ->> 6, value ->> 7, value ->> 8
FROM json_each(?6) WHERE true
ON CONFLICT (scope_id, repository_id, window_ms, revision) DO NOTHING

-- name: refuse_unless_all_are_there
-- All ?4 reports of this time (?3) were written: if another node was quicker with one, none is stored.
INSERT INTO refusals (reason) SELECT 'refused' WHERE ?4 <> (
    SELECT count(*) FROM bar_reports
    WHERE OF_MESH AND hlc = ?3 AND window_ms IN (SELECT value FROM json_each(?5)))

-- name: refuse_unless_follows
-- No bar after ?4, the end of the last report, was reported.
INSERT INTO refusals (reason) SELECT 'refused' WHERE UNTIL <> ?4

-- name: newest
-- The last ?3 bars, or the last before ?4, each in its last revision.
SELECT document FROM bar_reports AS r
WHERE OF_MESH AND window_ms < coalesce(?4, 9223372036854775807) AND revision = (
    SELECT max(revision) FROM bar_reports AS other
    WHERE other.scope_id = ?1 AND other.repository_id = ?2 AND other.window_ms = r.window_ms)
ORDER BY window_ms DESC LIMIT ?3

-- name: one
SELECT document FROM bar_reports
WHERE OF_MESH AND window_id = ?3 ORDER BY window_ms DESC, revision DESC LIMIT 1

-- name: forget
-- The oldest ?4 from before ?3, except the last of all.
DELETE FROM bar_reports
WHERE OF_MESH AND window_ms < ?3 AND (window_ms, revision) IN (
    SELECT window_ms, revision FROM bar_reports
    WHERE OF_MESH AND until_ms < ?3 AND window_ms < (SELECT max(window_ms) FROM bar_reports WHERE OF_MESH)
    ORDER BY window_ms LIMIT ?4)

-- name: changed
-- The number of rows that the last statement changed.
SELECT changes()
