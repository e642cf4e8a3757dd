"""The rules and messages of supd: pure, deterministic, without IO, clock or randomness of its own."""
