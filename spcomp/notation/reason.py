"""Index notation, decisions: why something cannot be done in one way, as a value."""

from __future__ import annotations

from dataclasses import dataclass

from spcomp.errors import LoweringError, Span


@dataclass(frozen=True, slots=True)
class Reason:
    """Why one way is not possible; the text of the error if there is no other way."""

    message: str
    at: Span | None = None
    hint: str = ""

    @property
    def error(self) -> LoweringError:
        """The error for the user."""
        return LoweringError(self.message, self.at, hint=self.hint)

    def __str__(self) -> str:
        return self.message
