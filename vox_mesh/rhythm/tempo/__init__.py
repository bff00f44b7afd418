"""The tempo: pulse, conductor and controller."""
