"""Attacks: what a hostile writer of the database, or a hostile process, tries against real nodes."""
