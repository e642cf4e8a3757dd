"""Cuts a text into the commands and words that a shell would see, and leaves variables as they are told.

Enough of a shell for launch lines out of scripts and notes: quotes, joined lines, comments, variables, `$(…)`, `~`,
`*`, redirections, and several commands. Nothing is executed or looked up.
"""

import re
from typing import NamedTuple

TEXT_MAX = 1 << 16

_JOINED = re.compile(r"\\[ \t]*(?:(?<=[ \t])#[^\n]*)?(?:\n|$)")
_VARIABLE = re.compile(r"\$(?:[A-Za-z_][A-Za-z0-9_]*|[0-9@*#?$!-])")
_HOME = re.compile(r"~(?=[/\s;&|<>]|$)")
_ENDS = re.compile(r"\|\||&&|;;?|\||&(?!>)|\n")
_REDIRECTION = re.compile(r"&?[<>]{1,3}[&|]?")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}


class NotShell(ValueError):
    """A text that a shell would not take; the text says why."""


class Piece(NamedTuple):
    """A part of a word: text, or what the shell would fill in, as it is told."""

    text: str
    is_variable: bool


class Word(NamedTuple):
    """A word of a command."""

    pieces: tuple[Piece, ...]

    @property
    def told(self) -> str:
        """The word with its variables as they are told."""
        return "".join(piece.text for piece in self.pieces)


class Shell:
    """The commands of a text. Raises NotShell."""

    def __init__(self, text: str) -> None:
        self.commands: list[list[Word]] = []
        self.has_broken_joins = False  # a blank or a comment stands between a backslash and the end of its line
        self._text = text.replace("\r\n", "\n")
        self._at = 0
        self._words: list[Word] = []
        self._pieces: list[Piece] | None = None  # of the word that is being read; None: there is none
        self._is_target = False  # the next word is that of a redirection
        if len(text) > TEXT_MAX:
            raise NotShell(f"it has more than {TEXT_MAX} characters")
        if "\0" in text:
            raise NotShell("it holds a NUL")
        while self._at < len(self._text):
            self._step()
        self._end_command()

    def _step(self) -> None:
        """Take in what stands at the current place."""
        text, at = self._text, self._at
        letter = text[at]
        if letter == "\\":
            self._backslash()
        elif letter in " \t":
            self._end_word()
            self._at += 1
        elif letter == "#" and self._pieces is None:
            self._at = self._find("\n", at)
        elif redirection := _REDIRECTION.match(text, at):
            self._redirect(redirection.end())
        elif end := _ENDS.match(text, at):
            self._end_command()
            self._at = end.end()
        elif letter == "'":
            end_at = self._closing("'", at + 1)
            self._add(text[at + 1 : end_at])
            self._at = end_at + 1
        elif letter == '"':
            self._quoted()
        elif text.startswith("$'", at):
            self._escaped()
        elif letter in "$`":
            self._variable()
        else:
            self._add(letter, is_variable=letter == "*" or self._is_home())
            self._at += 1

    def _is_home(self) -> bool:
        """Whether a `~` is here for which the shell fills in the home folder of this user."""
        return self._pieces is None and bool(_HOME.match(self._text, self._at))

    def _backslash(self) -> None:
        joined = _JOINED.match(self._text, self._at)
        if joined is None:
            self._add(self._text[self._at + 1])
            self._at += 2
            return
        if joined[0] not in ("\\\n", "\\"):
            self.has_broken_joins = True
            self._end_word()
        self._at = joined.end()

    def _redirect(self, end: int) -> None:
        """`> FILE`, `2>&1`: no words of the command."""
        if self._pieces is not None and all(piece.text.isdecimal() for piece in self._pieces):
            self._pieces = None
        self._end_word()
        self._is_target = True
        self._at = end

    def _quoted(self) -> None:
        """Text in double quotes, in which variables count."""
        self._add("")
        self._at += 1
        while self._letter() != '"':
            if self._letter() in "$`":
                self._variable()
            elif self._letter() == "\\" and self._text[self._at + 1 : self._at + 2] in tuple('"\\$`\n'):
                self._add(self._text[self._at + 1].strip("\n"))
                self._at += 2
            else:
                self._add(self._letter())
                self._at += 1
        self._at += 1

    def _escaped(self) -> None:
        r"""Text like $'a\nb'."""
        self._add("")
        self._at += 2
        while self._letter() != "'":
            if self._letter() == "\\":
                self._at += 1
                self._add(_ESCAPES.get(self._letter(), self._letter()))
            else:
                self._add(self._letter())
            self._at += 1
        self._at += 1

    def _variable(self) -> None:
        """`$NAME`, `${…}`, `$(…)`, and what stands in back-ticks; a `$` before anything else is one."""
        text, at = self._text, self._at
        if text[at] == "`":
            end = self._closing("`", at + 1) + 1
        elif text.startswith("${", at):
            end = self._closing("}", at + 2) + 1
        elif text.startswith("$(", at):
            end = self._parenthesis(at + 1)
        elif found := _VARIABLE.match(text, at):
            end = found.end()
        else:
            self._add("$")
            self._at += 1
            return
        self._add(text[at:end], is_variable=True)
        self._at = end

    def _parenthesis(self, at: int) -> int:
        """Behind the parenthesis that closes the one here."""
        depth = 0
        for end in range(at, len(self._text)):
            depth += {"(": 1, ")": -1}.get(self._text[end], 0)
            if depth == 0:
                return end + 1
        raise NotShell("a parenthesis is not closed")

    def _closing(self, mark: str, at: int) -> int:
        end = self._text.find(mark, at)
        if end < 0:
            raise NotShell(f"a {mark} is missing")
        return end

    def _find(self, mark: str, at: int) -> int:
        end = self._text.find(mark, at)
        return len(self._text) if end < 0 else end

    def _letter(self) -> str:
        """What stands here, within quotes. Raises NotShell at the end."""
        if self._at >= len(self._text):
            raise NotShell("a quote is not closed")
        return self._text[self._at]

    def _add(self, text: str, *, is_variable: bool = False) -> None:
        pieces = self._pieces = self._pieces if self._pieces is not None else []
        if pieces and not is_variable and not pieces[-1].is_variable:
            pieces[-1] = Piece(pieces[-1].text + text, False)
        else:
            pieces.append(Piece(text, is_variable))

    def _end_word(self) -> None:
        if self._pieces is not None and not self._is_target:
            self._words.append(Word(tuple(self._pieces)))
        if self._pieces is not None:
            self._is_target = False
        self._pieces = None

    def _end_command(self) -> None:
        self._end_word()
        if self._words:
            self.commands.append(self._words)
        self._words, self._is_target = [], False
