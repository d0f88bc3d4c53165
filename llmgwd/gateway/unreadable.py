"""What the JSON decoder raises for text that it cannot read: broken, in another coding, or nested without end."""

import msgspec

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
