"""Other queues, measured beside our jobs in the same run, each as its own documentation shows it."""
