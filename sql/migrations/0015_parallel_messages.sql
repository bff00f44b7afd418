-- Whether a message waits for the earlier ones of its pair. Older nodes send ordered messages, and handle all messages as
-- ordered: fewer at the same time, but correctly.
-- if-missing: a2a_messages.is_ordered
ALTER TABLE a2a_messages ADD COLUMN is_ordered INTEGER NOT NULL DEFAULT 1;
