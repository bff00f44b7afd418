"""Typed jobs: functions whose arguments and results are validated on both sides."""
