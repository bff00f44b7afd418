"""The pure rules of the rhythm: beats and bars, scores, promises, reports, budgets."""
