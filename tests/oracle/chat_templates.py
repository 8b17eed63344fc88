"""Compares the ids of conversations, and their loss masks, with those of transformers' apply_chat_template, for
templates in the styles of known model families. transformers tells which tokens are the assistant's if a template marks
them with {% generation %}; the other templates are compared with a copy that has these marks.

    chat_templates.py --build build
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

from venv_python import use_the_tests_python

use_the_tests_python()
try:
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

SPECIAL = ["<s>", "</s>", "<|turn|>", "<|end|>", "[ASK]", "[/ASK]"]
ANSWER, END_ANSWER = "{% generation %}", "{% endgeneration %}"

# Each template marks the answers. A copy without the marks must give the same.
TEMPLATES = {
    # one pair of marks around each turn, a default system message, tools as JSON
    "turns": """{%- if tools %}
    {{- '<|turn|>system\\nTools: ' + (tools | tojson) + '<|end|>\\n' }}
{%- elif messages[0]['role'] != 'system' %}
    {{- '<|turn|>system\\nYou help.<|end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {{- '<|turn|>assistant\\n' }}
        {%- generation %}{{- message.content + '<|end|>\\n' }}{%- endgeneration %}
    {%- else %}
        {{- '<|turn|>' + message.role + '\\n' + message.content + '<|end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|turn|>assistant\\n' }}{%- endif %}""",
    # a begin token, trimmed content, a namespace, a macro
    "trimmed": """{{ bos_token }}
{% set ns = namespace(turn=0) %}
{% macro head(role) %}<|turn|>{{ role }}{{ ns.turn }}

{% endmacro %}
{% for message in messages %}
{% set ns.turn = loop.index %}
{{ head(message['role']) }}{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] | trim }}<|end|>{% endgeneration %}{% else %}{{ message['content'] | trim }}<|end|>{% endif %}
{% endfor %}
{% if add_generation_prompt %}
{% set ns.turn = messages | length + 1 %}
{{ head('assistant') }}{% endif %}""",
    # questions in brackets, answers with an end token, no prompt for the answer, the system message in the first question
    "brackets": """{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] + '\\n\\n' %}{% set rest = messages[1:] %}{% else %}{% set system = '' %}{% set rest = messages %}{% endif %}{{ bos_token }}{% for m in rest %}{% if m['role'] == 'user' %}{{ '[ASK] ' + (system if loop.first else '') + m['content'] + ' [/ASK]' }}{% elif m['role'] == 'assistant' %}{% generation %}{{ ' ' + m['content'] + eos_token }}{% endgeneration %}{% else %}{{ raise_exception('only questions and answers') }}{% endif %}{% endfor %}""",
    # loop controls, and a filter of the content
    "controls": """{% for m in messages %}{% if m.role == 'system' %}{% continue %}{% endif %}<|turn|>{{ m.role | upper if m.role == 'user' else m.role }}
{% if m.role == 'assistant' %}{% generation %}{{ m.content }}<|end|>{% endgeneration %}{% else %}{{ m.content }}<|end|>{% endif %}{% endfor %}{% if add_generation_prompt %}<|turn|>assistant
{% endif %}""",
    # reasoning under each of its names
    "reasoning": """{% for m in messages %}<|turn|>{{ m.role }}
{% if m.role == 'assistant' %}{% generation %}{% if m.reasoning_content is defined %}({{ m.reasoning_content }}){% endif %}{% if 'thinking' in m %}[{{ m.thinking }}]{% endif %}{{ m.content }}<|end|>{% endgeneration %}{% else %}{{ m.content }}<|end|>{% endif %}{% endfor %}{% if add_generation_prompt %}<|turn|>assistant
{% endif %}""",
}

CONTENTS = ["Hi", "What is 2 + 2?", "  spaces at both ends \n", "naïve ünïcode 😀🏽 한국어", "a\n\nb\n", "<|end|> inside", "",
            "{% raw %} braces {{ }}", "long " * 200, "0", "\u2028 \t tab"]


def conversations():
    yield {"messages": [{"role": "user", "content": "x", "name": None}, {"role": "assistant", "content": "y"},
                        {"role": "assistant", "content": "z", "tool_calls": None}]}
    yield {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}]}
    for names in (["reasoning_content"], ["thinking"], ["reasoning"], ["reasoning", "thinking"]):
        thoughts = {name: f"a {name}" for name in names}
        yield {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!", **thoughts}]}
    for i, content in enumerate(CONTENTS):
        other = CONTENTS[(i * 5 + 3) % len(CONTENTS)]
        turns = [{"role": "user", "content": content}, {"role": "assistant", "content": other}]
        yield {"messages": turns, "id": i}
        yield {"messages": [{"role": "system", "content": other}, *turns, *turns[::-1][::-1]]}
    yield {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}],
           "tools": [{"type": "function", "function": {"name": "add", "description": "Adds “a” and b",
                                                       "parameters": {"type": "object", "b": 1, "a": [1, 2.5]}}}]}


def make_tokenizer(folder):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    texts = [pathlib.Path(__file__).read_text(encoding="utf-8")]
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=600, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False,
        special_tokens=SPECIAL))
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>",
                                   clean_up_tokenization_spaces=False)
    fast.save_pretrained(folder)
    return fast


def ours(build, folder, template):
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    lines = subprocess.run([str(build / "tests/encode_texts"), str(folder / "tokenizer.json"),
                            str(folder / "chat.jsonl"), "chat"], capture_output=True, text=True)
    if lines.returncode != 0:
        sys.exit(f"encode_texts failed: {lines.stderr}")
    numbers = [[int(word) for word in line.split()] for line in lines.stdout.split("\n")[:-1]]
    return list(zip(numbers[::2], numbers[1::2]))


def differences(build, folder, tokenizer, name, template):
    all_conversations = list(conversations())
    wanted = []
    for one in all_conversations:
        made = tokenizer.apply_chat_template(one["messages"], tools=one.get("tools"), chat_template=template,
                                             tokenize=True, return_dict=True, return_assistant_tokens_mask=True)
        wanted.append((made["input_ids"], made["assistant_masks"]))
    count = 0
    plain = template
    for mark in (ANSWER, END_ANSWER, "{%- generation %}", "{%- endgeneration %}"):
        plain = plain.replace(mark, "")
    for kind, text in (("marked", template), ("plain", plain)):
        found = ours(build, folder, text)
        assert len(found) == len(wanted), (len(found), len(wanted))
        for one, have, want in zip(all_conversations, found, wanted):
            if have[0] != list(want[0]) or have[1] != list(want[1]):
                count += 1
                if count <= 3:
                    print(f"{name}, {kind}: {json.dumps(one)[:200]}\n  ours   {have}\n  theirs {want}"[:3000])
    print(f"{name}: {len(all_conversations)} conversations with and without marks, "
          f"{sum(sum(mask) for _, mask in wanted)} tokens with loss, {count} different")
    return count


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", type=pathlib.Path, default="build")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        tokenizer = make_tokenizer(folder)
        (folder / "chat.jsonl").write_text("".join(json.dumps(one) + "\n" for one in conversations()))
        count = sum(differences(arguments.build, folder, tokenizer, *item) for item in TEMPLATES.items())
        # The comparison must see a template that differs.
        changed = TEMPLATES["controls"].replace("upper", "lower")
        wanted = tokenizer.apply_chat_template(next(conversations())["messages"], chat_template=TEMPLATES["controls"],
                                               tokenize=True, return_dict=True)["input_ids"]
        if ours(arguments.build, folder, changed)[0][0] == list(wanted):
            sys.exit("a changed template gives the same ids")
    sys.exit(1 if count else 0)


if __name__ == "__main__":
    main()
