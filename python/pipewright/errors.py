"""What the world did: a model, a file, an option, a program that ended."""
import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str:
    found = difflib.get_close_matches(name, list(known), n=1)
    return f"Did you mean '{found[0]}'?" if found else ""


class Error(Exception):
    """One line with what, where, got and expected; `remedy` is the likely cause and the next command, "" where none is known.

    `returncode`: what `pipewright` ends with (docs/semantics.md has the exit codes).
    """
    returncode = 1

    def __init__(self, message: str, remedy: str = ""):
        super().__init__(message)
        self.remedy = remedy

    def __str__(self) -> str:
        return super().__str__() + (f"\n  {self.remedy}" if self.remedy else "")


class UsageError(Error):
    """Refused before anything starts: an option, or a file that it names."""
    returncode = 2


class ProgramError(Error):
    """A program ended with another exit code than 0 (docs/semantics.md has them); it has said why on standard error.

    `command`: its words, `returncode`: its exit code, negative for a signal.
    """

    def __init__(self, command: "list[str]", returncode: int, message: str, remedy: str = ""):
        super().__init__(message, remedy)
        self.command, self.returncode = command, returncode
