-- The signature of a message by its sender's own key. Older nodes send none, and drop that of a message they relay.
-- if-missing: a2a_messages.agent_signature
ALTER TABLE a2a_messages ADD COLUMN agent_signature TEXT;
