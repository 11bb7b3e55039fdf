"""Chat templates: those that trl carries, and small ones with the peculiarities of other families.

None is copied: trl's are read from where it is installed, and the small ones are our own, each as
short as what it shows.
"""

import re
from importlib import resources
from typing import Final

from transformers import PreTrainedTokenizerFast

from qguide.training.small_models import train_tokenizer

_HEADER = "<|start_header_id|>{role}<|end_header_id|>\n\n"
_ALTERNATES = (
    "{% for m in turns %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate user/assistant') }}{% endif %}{% endfor %}"
)
_SYSTEM_APART = (
    "{% if messages[0].role == 'system' %}{% set system = messages[0].content %}"
    "{% set turns = messages[1:] %}{% else %}{% set turns = messages %}{% endif %}"
)

OWN_TEMPLATES: Final = {
    # Today's date, a system turn that is always there, one call in a turn.
    "like llama 3.x": (
        "{{ bos_token }}"
        + _SYSTEM_APART
        + _HEADER.format(role="system")
        + "Today Date: {{ strftime_now('%d %b %Y') }}\n\n{{ system | default('') | trim }}"
        "<|eot_id|>"
        "{% for m in turns %}"
        "{% if m.tool_calls %}{% if m.tool_calls | length > 1 %}"
        "{{ raise_exception('only single tool-calls') }}{% endif %}"
        + _HEADER.format(role="assistant")
        + '{"name": "{{ m.tool_calls[0].function.name }}", "parameters": '
        "{{ m.tool_calls[0].function.arguments | tojson }}}<|eot_id|>"
        "{% else %}<|start_header_id|>{{ 'ipython' if m.role == 'tool' else m.role }}"
        "<|end_header_id|>\n\n{{ m.content | trim }}<|eot_id|>{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}" + _HEADER.format(role="assistant") + "{% endif %}"
    ),
    # The system's text moves to the user's last turn; roles alternate; ids have nine characters.
    "like mistral": (
        "{{ bos_token }}"
        + _SYSTEM_APART
        + "{% set ns = namespace(last=-1) %}{% for m in turns %}{% if m.role == 'user' %}"
        "{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
        "{% set plain = turns | rejectattr('role', 'equalto', 'tool')"
        " | rejectattr('tool_calls', 'defined') | list %}"
        + _ALTERNATES.replace("turns", "plain")
        + "{% for m in turns %}{% if m.role == 'user' %}[INST] "
        "{% if system is defined and loop.index0 == ns.last %}{{ system + '\n\n' }}{% endif %}"
        "{{ m.content }}[/INST]"
        "{% elif m.role == 'tool' %}{% if m.tool_call_id | length != 9 %}"
        "{{ raise_exception('ids have nine characters') }}{% endif %}"
        '[TOOL_RESULTS]{"content": {{ m.content }}, "call_id": "{{ m.tool_call_id }}"}'
        "[/TOOL_RESULTS]"
        "{% elif m.tool_calls %}[TOOL_CALLS][{% for c in m.tool_calls %}"
        '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}, '
        '"id": "{{ c.id }}"}{{ ", " if not loop.last }}{% endfor %}]{{ eos_token }}'
        "{% else %} {{ m.content }}{{ eos_token }}{% endif %}{% endfor %}"
    ),
    # No system role, alternating roles, an end of turn that is not the tokenizer's.
    "like gemma 2": (
        "{{ bos_token }}{% set turns = messages %}{% if messages[0].role == 'system' %}"
        "{{ raise_exception('System role not supported') }}{% endif %}"
        + _ALTERNATES
        + "{% for m in turns %}<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
        "{{ m.content | trim }}<end_of_turn>\n{% endfor %}"
        "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
    ),
    # The system's text in the first user's turn, by the template itself.
    "like gemma 3": (
        "{{ bos_token }}"
        + _SYSTEM_APART
        + _ALTERNATES
        + "{% for m in turns %}<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
        "{% if loop.first and system is defined %}{{ system[0].text + '\n\n' }}{% endif %}"
        "{% for part in m.content %}{{ part.text | trim }}{% endfor %}<end_of_turn>\n{% endfor %}"
        "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
    ),
    # Calls, their results and what is said next are one turn of the model's.
    "like gemma 4": (
        "{{ bos_token }}{% set ns = namespace(open=false) %}{% for m in messages %}"
        "{% if m.role == 'tool' %}response:{{ m.content }}<tool_response|>"
        "{% else %}{% if not ns.open %}<|turn>"
        "{{ 'model' if m.role == 'assistant' else m.role }}\n{% endif %}"
        "{{ (m.content or '').split('<channel|>')[-1] }}"
        "{% for c in m.tool_calls or [] %}<|tool_call>call:{{ c.function.name }}"
        "{{ c.function.arguments | tojson }}<tool_call|>{% endfor %}"
        "{% if m.tool_calls %}<|tool_response>{% set ns.open = true %}"
        "{% else %}<turn|>\n{% set ns.open = false %}{% endif %}{% endif %}{% endfor %}"
        "{% if add_generation_prompt and not ns.open %}<|turn>model\n{% endif %}"
    ),
    # No end of turn, thoughts of past turns emptied, results in a turn of their own.
    "like glm 4": (
        "[gMASK]<sop>{% set ns = namespace(last=-1) %}{% for m in messages %}"
        "{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
        "{% for m in messages %}{% if m.role == 'tool' %}<|observation|>\n{{ m.content }}"
        "{% elif m.role == 'assistant' %}<|assistant|>\n"
        "{% if loop.index0 > ns.last and '</think>' in m.content %}"
        "{{ m.content.split('</think>')[0] + '</think>' }}{% else %}<think></think>{% endif %}"
        "{% if m.content %}\n{{ m.content.split('</think>')[-1].strip() }}{% endif %}"
        "{% for c in m.tool_calls or [] %}\n<tool_call>{{ c.function.name }}"
        "{% for k, v in c.function.arguments.items() %}\n<arg_key>{{ k }}</arg_key>"
        "<arg_value>{{ v }}</arg_value>{% endfor %}</tool_call>{% endfor %}"
        "{% else %}<|{{ m.role }}|>\n{{ m.content }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    ),
    # Thoughts stay in the last reply alone.
    "like lfm 2": (
        "{{ bos_token }}{% set ns = namespace(last=-1) %}{% for m in messages %}"
        "{% if m.role == 'assistant' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{% set said = m.content %}"
        "{% if m.role == 'assistant' and loop.index0 != ns.last %}"
        "{% set said = said.split('</think>')[-1].strip() %}{% endif %}{{ said }}<|im_end|>\n"
        "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    ),
    # A default system text with the date, and empty thoughts in the prompt.
    "like smollm 3": (
        _SYSTEM_APART + "<|im_start|>system\n## Metadata\nToday: {{ strftime_now('%d %B %Y') }}\n"
        "Reasoning Mode: /no_think\n\n{{ system | default('You help.') }}<|im_end|>\n"
        "{% for m in turns %}<|im_start|>{{ m.role }}\n"
        "{% if m.role == 'assistant' %}<think>\n\n</think>\n{{ m.content }}"
        "{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n\n</think>\n{% endif %}"
    ),
    # The last turn closes without the line break that past ones have.
    "like olmo 2": (
        "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}"
        "{% if m.role == 'assistant' %}{{ eos_token }}{% endif %}"
        "{% if not loop.last or m.role != 'assistant' %}{{ '\n' }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
    ),
    # A default system text with the date, which a system message replaces.
    "like granite": (
        _SYSTEM_APART + "<|start_of_role|>system<|end_of_role|>"
        "{{ system | default('Today is ' + strftime_now('%B %d, %Y') + '. You help.') }}"
        "<|end_of_text|>\n{% for m in turns %}<|start_of_role|>"
        "{{ 'tool_response' if m.role == 'tool' else m.role }}<|end_of_role|>"
        "{% if m.tool_calls %}<|tool_call|>[{% for c in m.tool_calls %}{{ c.function | tojson }}"
        "{% endfor %}]{% endif %}{{ m.content }}<|end_of_text|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|start_of_role|>assistant<|end_of_role|>{% endif %}"
    ),
    # A preamble, and a reply framed twice.
    "like command r": (
        "{{ bos_token }}"
        + _SYSTEM_APART
        + _ALTERNATES
        + "<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|># Preamble\n{{ system | default('') }}"
        "<|END_OF_TURN_TOKEN|>{% for m in turns %}<|START_OF_TURN_TOKEN|>"
        "{% if m.role == 'user' %}<|USER_TOKEN|>{{ m.content | trim }}"
        "{% else %}<|CHATBOT_TOKEN|><|START_RESPONSE|>{{ m.content | trim }}<|END_RESPONSE|>"
        "{% endif %}<|END_OF_TURN_TOKEN|>{% endfor %}{% if add_generation_prompt %}"
        "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|><|START_RESPONSE|>{% endif %}"
    ),
    # No line breaks, a separator within the turn, tools' messages left out.
    "like phi 4": (
        "{% for m in messages %}{% if m.role in ['system', 'user', 'assistant'] %}"
        "<|im_start|>{{ m.role }}<|im_sep|>{{ m.content }}<|im_end|>{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant<|im_sep|>{% endif %}"
    ),
    # A name in each role's opening, a default system text, results under the id of their call.
    "like kimi k2": (
        "{% if messages[0].role != 'system' %}<|im_system|>system<|im_middle|>You are Kimi."
        "<|im_end|>{% endif %}{% for m in messages %}"
        "<|im_{{ 'system' if m.role == 'tool' else m.role }}|>{{ m.role }}<|im_middle|>"
        "{% if m.role == 'tool' %}## Return of {{ m.tool_call_id }}\n{% endif %}{{ m.content }}"
        "{% if m.tool_calls %}<|tool_calls_section_begin|>{% for c in m.tool_calls %}"
        "<|tool_call_begin|>{{ c.function.name }}:{{ c.id }}<|tool_call_argument_begin|>"
        "{{ c.function.arguments if c.function.arguments is string"
        " else c.function.arguments | tojson }}<|tool_call_end|>{% endfor %}"
        "<|tool_calls_section_end|>{% endif %}<|im_end|>{% endfor %}"
        "{% if add_generation_prompt %}<|im_assistant|>assistant<|im_middle|>{% endif %}"
    ),
    # A prompt that opens thoughts, which past turns lose with their frame.
    "like minimax": (
        _SYSTEM_APART + "]~!b[]~b]system\n{{ system | default('You are a helpful assistant.') }}"
        "[e~[\n{% set ns = namespace(last=-1) %}{% for m in turns %}{% if m.role == 'user' %}"
        "{% set ns.last = loop.index0 %}{% endif %}{% endfor %}{% for m in turns %}"
        "{% if m.role == 'assistant' %}]~b]ai\n"
        "{% if loop.index0 > ns.last and '</think>' in m.content %}{{ m.content }}"
        "{% else %}{{ m.content.split('</think>')[-1].strip('\n') }}{% endif %}"
        '{% for c in m.tool_calls or [] %}\n<invoke name="{{ c.function.name }}">'
        "{{ c.function.arguments | tojson }}</invoke>{% endfor %}"
        "{% else %}]~b]{{ m.role }}\n{{ m.content }}{% endif %}[e~[\n{% endfor %}"
        "{% if add_generation_prompt %}]~b]ai\n<think>\n{% endif %}"
    ),
}
"""Templates in the manner of families that trl does not carry, by what they are like."""

_ENDS: Final = {
    "like llama 3.x": "<|eot_id|>",
    "like mistral": "</s>",
    "like gemma 2": "<eos>",
    "like gemma 3": "<eos>",
    "like gemma 4": "<eos>",
    "like glm 4": "<|endoftext|>",
    "like olmo 2": "<|endoftext|>",
    "like granite": "<|end_of_text|>",
    "like command r": "<|END_OF_TURN_TOKEN|>",
    "like minimax": "[e~[",
    "gptoss": "<|return|>",
    "llava_next": "</s>",
    "muse_glimmer": "<|eot|>",
}
"""End-of-turn tokens of tokenizers where it is not the first of those below in the template."""
_USUAL_ENDS: Final = ("<｜end▁of▁sentence｜>", "<|im_end|>", "<|eot_id|>", "<|END_OF_TURN_TOKEN|>")
_CONTROL: Final = re.compile(
    r"<\|[^<>|{}\s]+\|>|<｜[^<>{}\s]+｜>|<\|[a-z_]+>|<[a-z_]+\|>|</?(?:start|end)_of_[a-z]+>"
    r"|\[/?[A-Z_]{4,}\]|<end_of_utterance>|\]~!b\[|\]~b\]|\[e~\["
)


def trl_templates() -> dict[str, str]:
    """The original templates that trl carries, by its names; its training twins are left out."""
    folder = resources.files("trl") / "chat_templates"
    return {
        file.name.removesuffix(".jinja"): file.read_text(encoding="utf-8")
        for file in sorted(folder.iterdir(), key=lambda file: file.name)
        if file.name.endswith(".jinja") and not file.name.endswith("_training.jinja")
    }


def trl_training_templates() -> dict[str, str]:
    """The twins of trl's templates that keep prefixes, by its names."""
    folder = resources.files("trl") / "chat_templates"
    return {
        file.name.removesuffix(".jinja"): file.read_text(encoding="utf-8")
        for file in sorted(folder.iterdir(), key=lambda file: file.name)
        if file.name.endswith("_training.jinja")
    }


def tokenizer_of(family: str, template: str, *, control: bool = True) -> PreTrainedTokenizerFast:
    """A small tokenizer with a family's template.

    Args:
        control: its marks are control tokens, as in the family's own tokenizer; else plain text.
    """
    tokenizer = train_tokenizer(["go to desk 1, take the pen 2 from drawer 3"] * 9, vocab_size=300)
    tokenizer.chat_template = template
    if control:
        marks = set(_CONTROL.findall(template))
        usual = (end for end in _USUAL_ENDS if end in marks)
        end = _ENDS.get(family) or next(usual, "<|endoftext|>")
        tokenizer.add_tokens(sorted(marks | {end, "<s>"}), special_tokens=True)
        tokenizer.eos_token, tokenizer.bos_token = end, "<s>"
    return tokenizer
