"""Values that every noun uses: identifiers, times, keys, canonical text."""
