"""Which supd this is. Here and not asked of the installed package: that takes longer than all else of a command."""

VERSION = "0.1.0"
