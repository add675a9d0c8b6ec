"""Static judgement of one call. Pure: `host` is its only window on the machine."""
