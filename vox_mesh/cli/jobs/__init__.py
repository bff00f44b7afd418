"""Commands for jobs, kinds, crons, rules, routes and workers."""
