"""Jobs split into tasks, and the executors that run them: local processes or Ray."""
