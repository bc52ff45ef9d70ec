"""For all tests: Hypothesis sets no time limit for an example, since cores are shared with others."""

from hypothesis import settings

settings.register_profile("without deadline", deadline=None)
settings.load_profile("without deadline")
