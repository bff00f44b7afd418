"""The op log: signed, chained entries, written together with what they record."""
