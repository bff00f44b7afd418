"""The tempo: pulse, conductor, controller and policies."""
