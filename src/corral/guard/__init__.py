"""Static judgement of one call. Pure: `machine` is the only module that asks the operating system."""
