"""The rules of the rhythm: beats and bars, scores, promises, reports, budgets. All pure."""
