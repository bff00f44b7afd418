-- Help threads that ended without an answer in time, by their end: they are few among all that ended.
CREATE INDEX IF NOT EXISTS help_threads_broken ON help_threads (scope_id, repository_id, ended_ms)
WHERE ended_ms IS NOT NULL AND state IN ('broken', 'expired', 'unanswered');
