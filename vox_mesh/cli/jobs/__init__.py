"""Commands for jobs, kinds, crons, routes and workers."""
