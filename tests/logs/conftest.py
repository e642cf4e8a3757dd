"""Fixtures of the tests of output."""

from tests.logs.small_disk import small_disk

__all__ = ["small_disk"]
