"""The place of an assistant's reply in rendered text, found with a stand-in for the reply."""

from dataclasses import dataclass, replace

from qguide.qnet.errors import RenderingError
from qguide.qnet.rendering.chat_template import ChatTemplate

_CLOSED_THINKING = "\n</think>\n\n"


@dataclass(frozen=True, slots=True)
class ReplyFrame:
    """The text around a reply.

    Attributes:
        past: the reply is taken from a past turn's rendering, else from the last turn's.
        opened: rendering of what the reply answers, with the generation prompt.
        shared: how many of its characters begin the turn's rendering too.
        lead_in: text of the turn between the generation prompt and what is said.
        lead_out: text of the reply behind what is said, end of turn included.
        suffix: what follows the reply in that rendering.
        replaced: characters of another end of turn at the reply's end, which `end` replaces.
        end: what is put at the reply's end.
        past_tail: from the stand-in's last character to the end of a past turn.
    """

    past: bool
    opened: str
    shared: int
    lead_in: str
    lead_out: str
    suffix: str
    replaced: int
    end: str
    past_tail: str

    def reply(self, rendered: str) -> str | None:
        """The reply in a rendering of the same turns, end of turn included; None if it differs."""
        known = self.opened[: self.shared]
        if not rendered.startswith(known) or not rendered.endswith(self.suffix):
            return None
        body = rendered[self.shared : len(rendered) - len(self.suffix) - self.replaced] + self.end
        missing = self.opened[self.shared :]
        if body.startswith(missing):
            return body[len(missing) :]
        # The prompt opened thoughts that the template leaves out of the turn: they are closed, as
        # the model would have to do before it says anything.
        if _opens_thinking(self.opened) and "</think>" not in body:
            return _CLOSED_THINKING + body
        return body


def find_frame(
    template: ChatTemplate, *, opened: str, past: str, last: str, mark: str
) -> ReplyFrame:
    """The frame of a reply whose last word is `mark`.

    Args:
        opened: rendering of a user's turn with the generation prompt.
        past: of that turn, the reply and the answer to it.
        last: of that turn and the reply.
    """
    if mark not in past:
        raise RenderingError(
            "the chat template leaves out an assistant's turn once it is answered; use a template "
            "that prints the conversation"
        )
    behind_past, behind_last = _behind(past, mark), _behind(last, mark)
    past_tail, last_tail, replaced, end = _ends(template, behind_past, behind_last)
    if not past.startswith(opened) and last.startswith(opened):
        # A finished turn looks as if another prompt had opened it; the last one does not.
        chosen, tail, replaced = last, last_tail, 0
        end = "" if template.has_control(last_tail) else end
        is_past = False
    else:
        chosen, tail, is_past = past, past_tail, True
    shared = template.common_length(opened, chosen)
    behind = _behind(chosen, mark)
    frame = ReplyFrame(
        past=is_past,
        opened=opened,
        shared=shared,
        lead_in="",
        lead_out="",
        suffix=behind[len(tail) :],
        replaced=replaced,
        end=end,
        past_tail=past_tail,
    )
    lead_in, _, lead_out = (frame.reply(chosen) or "").partition(mark)
    return replace(frame, lead_in=lead_in, lead_out=lead_out)


def _ends(template: ChatTemplate, past: str, last: str) -> tuple[str, str, int, str]:
    """Tails of a past and of the last turn, and how the past one's end becomes the model's own."""
    common = past[: template.common_length(past, last)]
    if cut := template.end_of_turn(common):
        return common[:cut], common[:cut], 0, ""
    # gpt-oss ends its last turn with <|return|>, which is what the model says, and past ones with
    # <|end|>; GLM's turns end where the next begins, so the end is the tokenizer's.
    own = template.leading_control(last[len(common) :])
    if not own:
        return common, common, 0, template.eos
    other = template.leading_control(past[len(common) :])
    return common + other, common + own, len(other), own


def _behind(text: str, mark: str) -> str:
    return text.rpartition(mark)[2] if mark in text else ""


def _opens_thinking(opened: str) -> bool:
    return "<think>" in opened and "</think>" not in opened.rpartition("<think>")[2]
