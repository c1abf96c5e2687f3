from eve_pyro.conftest import fresh_pyro  # noqa: F401  one fixture for tests and doctests
