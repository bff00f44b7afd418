"""Summaries of all commands. Written by `python -m tools.cli_summaries`; do not edit."""

from __future__ import annotations

from typing import Final

SUMMARIES: Final = {
    "agents": "List the agents and what they do",
    "beat": "Show the current beat, its phase, the tempo and the leader",
    "budget": "Set budgets in beats, and show spending",
    "completion": "Print the completion script of a shell",
    "config": "Show the settings and where they came from",
    "conflicts": "List, show, resolve and watch conflicting writes",
    "cron": "Add, list and remove recurring jobs",
    "db": "Create, inspect, migrate, back up and restore the database",
    "doctor": "Check settings, database and nodes, and give advice",
    "git": "Export jobs to a git repository, and import them",
    "guard": "Reject commits of paths that another agent holds",
    "help": "Show the help of a command",
    "inbox": "Show, claim or acknowledge the messages of an agent",
    "init": "Create the mesh of this repository or folder",
    "kind": "Pause, limit and audit kinds of job",
    "job": "Schedule, inspect, wait for, abort and verify jobs",
    "join": "Join the mesh on a shared database server",
    "lock": "Acquire, renew, release, list and break locks",
    "messages": "List, show, acknowledge, reject and retry messages",
    "nodes": "List the live nodes",
    "oplog": "Read, verify, export and anchor the op log",
    "rhythm": "Show and set the tempo, and show reports on bars",
    "roles": "Show the roles of nodes, and change, pass on or recover them",
    "route": "Route kinds of job to one node",
    "rule": "Add, list and remove rules: jobs for logged ops",
    "score": "Check scores: how a task divides its work into beats",
    "send": "Send a message to an agent, a role or everyone",
    "server": "Install and start a self-hosted database server",
    "status": "Show the mesh, its nodes, agents, work and problems",
    "top": "Show nodes, jobs, locks, messages and conflicts live",
    "token": "Make tokens for database servers and the HTTP service",
    "trust": "Approve the .env file of the current folder",
    "ucxl": "Resolve the times in UCXL addresses",
    "up": "Run a node of the mesh until SIGINT or SIGTERM",
    "worker": "Run, list and drain workers",
    "workflow": "Run files of jobs that depend on each other",
}
