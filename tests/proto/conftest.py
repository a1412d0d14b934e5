from hypothesis import HealthCheck, settings

# Nothing is timed in a test: a busy machine may be as slow as it likes.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")
