"""Dialogs: questions before an action, and pages of text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, Final, Generic, TypeVar

from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from vox_mesh.cli.top.headline import Words

MAX_REASON: Final = 500

Answer = TypeVar("Answer")
Answers = Mapping[str, tuple[str, str]]
"""For each key, the answer and its label; an empty answer cancels."""


class Dialog(ModalScreen[Answer | None], Generic[Answer]):
    """A box in the middle of the screen; Esc cancels it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss_it", show=False)]
    DEFAULT_CSS = """
    Dialog { align: center middle; background: transparent; }
    Dialog > Vertical {
        width: auto; max-width: 92%; min-width: 40; height: auto; max-height: 90%;
        border: round ansi_yellow; padding: 0 1; background: ansi_default;
    }
    Dialog Static { width: auto; max-width: 100%; height: auto; }
    Dialog VerticalScroll { height: auto; max-height: 16; width: auto; max-width: 100%; scrollbar-size: 1 1; }
    Dialog Input { width: 56; border: none; height: 1; padding: 0; margin: 1 0; }
    """

    def action_dismiss_it(self) -> None:
        """Close the dialog without an answer."""
        self.dismiss(None)


class DialogChoice(Dialog[str]):
    """A question answered by one key, with optional text below it."""

    def __init__(self, question: str, answers: Answers, lines: Sequence[str] = ()) -> None:
        super().__init__()
        self._question = question
        self._answers = answers
        self._lines = lines

    def compose(self) -> ComposeResult:
        """Yield the question, the text and the keys."""
        with Vertical():
            yield Static(Text(self._question, style="bold"), markup=False)
            if self._lines:
                with VerticalScroll():
                    yield Static(Text("\n".join(["", *self._lines]), no_wrap=True), markup=False)
            keys = [(key, label) for key, (_, label) in self._answers.items()]
            yield Static(Text.assemble("\n", *key_words([*keys, ("esc", "cancel")])))

    def on_key(self, event: events.Key) -> None:
        """Answer if the key is one of the answers."""
        if event.key in self._answers:
            event.stop()
            self.dismiss(self._answers[event.key][0] or None)


class Ask(Dialog[str]):
    """A question answered by a text, which must not be empty."""

    def __init__(self, question: str, prompt: str) -> None:
        super().__init__()
        self._question = question
        self._prompt = prompt

    def compose(self) -> ComposeResult:
        """Yield the question, the input line and the keys."""
        with Vertical():
            yield Static(Text(self._question, style="bold"), markup=False)
            yield Input(placeholder=self._prompt, max_length=MAX_REASON)
            yield Static(Text.assemble(*key_words([("enter", "confirm"), ("esc", "cancel")])))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Answer with the text."""
        if event.value.strip():
            self.dismiss(event.value.strip())


class DialogPage(Dialog[str]):
    """A page of text that scrolls."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,enter,q,question_mark", "dismiss_it", show=False),
    ]
    DEFAULT_CSS = """
    DialogPage > Vertical { width: 92%; height: 90%; border: round ansi_cyan; }
    DialogPage VerticalScroll { height: 1fr; max-height: 100%; width: 1fr; scrollbar-size: 1 1; }
    DialogPage Static { width: 1fr; }
    """

    def __init__(self, title: str, lines: Sequence[str]) -> None:
        super().__init__()
        self._title = title
        self._lines = lines

    def compose(self) -> ComposeResult:
        """Yield the title and the text."""
        with Vertical():
            yield Static(Text(self._title, style="bold"), markup=False)
            with VerticalScroll():
                yield Static(Text("\n".join(self._lines)), markup=False)

    def on_mount(self) -> None:
        """Focus the text, so that keys scroll it."""
        self.query_one(VerticalScroll).focus()


def key_words(keys: Iterable[tuple[str, str]]) -> Words:
    """Return keys and their labels as styled text."""
    words: Words = []
    for key, label in keys:
        words += [(key, "reverse"), (f" {label}   ", "")]
    return words
