"""The demo: three orchestrators do sixty jobs together, one is killed, and nothing is lost or duplicated."""
