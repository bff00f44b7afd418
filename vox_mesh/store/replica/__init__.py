"""Keep an embedded replica: a local copy that follows the primary's write-ahead log within milliseconds."""
