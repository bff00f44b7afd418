"""The rhythm: a common tempo, and what follows from it. Everything is derived from the clock."""
