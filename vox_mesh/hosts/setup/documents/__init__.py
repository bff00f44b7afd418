"""Edit documents as text, so that what others wrote stays unchanged, byte for byte."""
