"""Dialogs: a question before something is done, and what there is to read."""

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

from vox_mesh.top.headline import Words

MAX_REASON: Final = 500

Answer = TypeVar("Answer")
Answers = Mapping[str, tuple[str, str]]
"""For each key, the answer and what it means; an empty answer is none."""


class Dialog(ModalScreen[Answer | None], Generic[Answer]):
    """A box in the middle of the screen; Esc closes it, and nothing is done."""

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
        """Close it without an answer."""
        self.dismiss(None)


class DialogChoice(Dialog[str]):
    """A question that one key answers; what there is to know before it may stand below it."""

    def __init__(self, question: str, answers: Answers, told: Sequence[str] = ()) -> None:
        super().__init__()
        self._question = question
        self._answers = answers
        self._told = told

    def compose(self) -> ComposeResult:
        """The question, what is known, and the keys."""
        with Vertical():
            yield Static(Text(self._question, style="bold"), markup=False)
            if self._told:
                with VerticalScroll():
                    yield Static(Text("\n".join(["", *self._told]), no_wrap=True), markup=False)
            keys = [(key, what) for key, (_, what) in self._answers.items()]
            yield Static(Text.assemble("\n", *key_words([*keys, ("esc", "leave it")])))

    def on_key(self, event: events.Key) -> None:
        """A key that is one of the answers gives it."""
        if event.key in self._answers:
            event.stop()
            self.dismiss(self._answers[event.key][0] or None)


class Ask(Dialog[str]):
    """A question that is answered by a text, which must not be empty."""

    def __init__(self, question: str, prompt: str) -> None:
        super().__init__()
        self._question = question
        self._prompt = prompt

    def compose(self) -> ComposeResult:
        """The question, a line for the answer, and the keys."""
        with Vertical():
            yield Static(Text(self._question, style="bold"), markup=False)
            yield Input(placeholder=self._prompt, max_length=MAX_REASON)
            yield Static(Text.assemble(*key_words([("enter", "do it"), ("esc", "leave it")])))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """The text is the answer."""
        if event.value.strip():
            self.dismiss(event.value.strip())


class DialogPage(Dialog[str]):
    """Something to read, as long as it may be."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,enter,q,question_mark", "dismiss_it", show=False),
    ]
    DEFAULT_CSS = """
    DialogPage > Vertical { width: 92%; height: 90%; border: round ansi_cyan; }
    DialogPage VerticalScroll { height: 1fr; max-height: 100%; width: 1fr; scrollbar-size: 1 1; }
    DialogPage Static { width: 1fr; }
    """

    def __init__(self, title: str, told: Sequence[str]) -> None:
        super().__init__()
        self._title = title
        self._told = told

    def compose(self) -> ComposeResult:
        """A title, and the text below it, which scrolls."""
        with Vertical():
            yield Static(Text(self._title, style="bold"), markup=False)
            with VerticalScroll():
                yield Static(Text("\n".join(self._told)), markup=False)

    def on_mount(self) -> None:
        """Keys go to the text, so that it scrolls."""
        self.query_one(VerticalScroll).focus()


def key_words(keys: Iterable[tuple[str, str]]) -> Words:
    """Keys, and what they do."""
    words: Words = []
    for key, what in keys:
        words += [(key, "reverse"), (f" {what}   ", "")]
    return words
