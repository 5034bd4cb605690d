"""Scale: what Ray costs and brings, on two cores."""
