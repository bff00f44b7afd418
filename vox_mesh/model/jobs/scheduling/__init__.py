"""What schedules jobs: crons, rules and workflows."""
