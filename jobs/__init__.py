"""What producers and workers both know: the domain, the settings, the store and the broker."""
