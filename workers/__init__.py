"""Drains the lanes: launch, pool, admission, engines, run, record, feed, sweep and webhooks."""
