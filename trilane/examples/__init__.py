"""The example work: chat turns, tickets and reports, one job a line."""
