"""Jobs that the mesh schedules itself: at the times of crons, and for ops by rules."""
