"""The command line and the local stack, which stand on producer, workers and jobs."""
