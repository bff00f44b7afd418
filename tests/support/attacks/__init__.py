"""Support for the attack tests."""
