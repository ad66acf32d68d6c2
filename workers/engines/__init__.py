"""The engines behind one seam; each is one file, imported only when it is asked for."""
