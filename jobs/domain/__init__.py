"""The rules of a job, in frozen values and pure functions of the standard library alone."""
