"""Chat templates: Transformers' conventions, the sandbox, and what bounds a template."""

import time

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from mambad.engine.errors import ConfigError, LoadError
from mambad.server import chat_template
from mambad.server.chat_template import ChatTemplate, TemplateFaultError
from mambad.server.chat_template_files import load_chat_templates

MESSAGES = [
    {"role": "system", "content": " Be <brief> & ünïcode. "},
    {"role": "user", "content": "Hi\n"},
    {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {"a": ["é", 1.5, None]}}}]},
]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
TEMPLATES = [
    """{{ bos_token }}{% for message in messages %}
  {% if message.role == 'system' %}
S:{{ message.content | trim }}
  {% elif message['content'] %}
{{ message['role'] }}: {{ message['content'] }}{% else %}{{ message.missing }}
    {%- for call in message.tool_calls %}{{ call.function | tojson }}{{ call.function|tojson(indent=2) }}
    {% endfor %}{% endif %}
{% endfor %}
{% if add_generation_prompt %}A:{% endif %}""",
    """{% set ns = namespace(last=-1) %}{% for m in messages %}{% if loop.index0 == 2 %}{% break %}{% endif %}
{% if m.role == 'system' %}{% continue %}{% endif %}{% set ns.last = loop.index0 %}{% endfor %}{{ ns.last }}
{% generation %}[{{ messages | length }}]{% endgeneration %}{%- if tools is defined and tools %}
{{- tools | map(attribute='function') | list | tojson }}{% endif %}{{ documents }}{{ x is defined }}""",
    """{% macro say(m) -%}<{{ m.role }}>{{ m.content }}{%- endmacro %}{{ say(messages[0]) }}
{{ messages[1:] | selectattr('role', 'equalto', 'user') | list | length }}{{ messages[-1].content is none }}
{{ 'a,b'.split(',')[1] }}{{ dict(a=1).items() | list }}{{ '%s' % 3 }}{{ [1, 2] + [3] }}""",
]


def fault(source, **variables):
    with pytest.raises(TemplateFaultError) as caught:
        ChatTemplate(source).render(variables)
    return str(caught.value)


@pytest.mark.parametrize("source", TEMPLATES)
@pytest.mark.parametrize("add_generation_prompt", [False, True])
def test_a_template_says_what_it_says_in_transformers(source, add_generation_prompt):
    others = {"bos_token": "<s>", "x": True}
    expected, _ = render_jinja_template(
        [MESSAGES], tools=TOOLS, documents=None, chat_template=source,
        add_generation_prompt=add_generation_prompt, **others,
    )  # fmt: skip
    variables = {"messages": MESSAGES, "tools": TOOLS, "documents": None, **others}
    variables["add_generation_prompt"] = add_generation_prompt
    assert ChatTemplate(source).render(variables) == expected[0]


def test_a_template_may_tell_the_time():
    assert ChatTemplate("{{ strftime_now('%Y') }}").render({}) == time.strftime("%Y")


def test_what_a_template_says_against_its_messages_comes_out():
    assert fault("{{ raise_exception('roles must ' + x) }}", x="alternate") == "roles must alternate"
    assert fault("{{ x.y.z }}", x={}).startswith("UndefinedError: ")
    assert fault("{{ 1 / 0 }}") == "ZeroDivisionError: division by zero"
    assert fault("{{ 'a' + 1 }}").startswith("TypeError: ")
    assert "\n" not in fault("{{ raise_exception('a\\nb' * 5000) }}")


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__ }}",
        "{{ messages.__init__ }}",
        "{{ cycler.__init__ }}",
        "{{ strftime_now.__globals__ }}",
        "{{ ''['__class__'] }}",
    ],
)
def test_the_sandbox_holds(source):
    # What is unsafe is undefined: it prints as nothing, and can't be used.
    assert ChatTemplate(f"[{source}]").render({"messages": []}) == "[]"
    assert fault(source.replace(" }}", ".x() }}"), messages=[]).startswith("SecurityError: ")


@pytest.mark.parametrize(
    "source", ["{{ messages.append(1) }}", "{% set n = namespace() %}{% set n.__x = 1 %}"]
)
def test_a_template_changes_nothing_but_its_own(source):
    assert fault(source, messages=[]).startswith("SecurityError: ")


@pytest.mark.parametrize(
    "source", ["{% if %}", "{% for x in y %}", "{{ a b }}", "{% nonsense %}", "{% break %}"]
)
def test_a_template_that_is_none_is_refused_before_it_is_used(source):
    with pytest.raises(TemplateFaultError):
        ChatTemplate(source)


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ 'a' * 10 ** 9 }}",
        "{{ [0] * 10 ** 9 }}",
        "{{ (10 ** 9) ** (10 ** 9) }}",
        "{% for a in range(9999) %}{{ 'a' * 9999 }}{% endfor %}",
    ],
)
def test_a_template_has_so_much_time_and_room(source, monkeypatch):
    monkeypatch.setattr(chat_template, "MAX_SECONDS", 0.2)
    started = time.monotonic()
    assert fault(source)
    assert time.monotonic() - started < 2


def test_the_clock_of_one_rendering_is_not_that_of_the_next(monkeypatch):
    template = ChatTemplate("{% for a in range(3) %}{{ a }}{% endfor %}")
    for _ in range(3):
        monkeypatch.setattr(chat_template, "MAX_SECONDS", 0.05)
        assert template.render({}) == "012"
        time.sleep(0.06)


def test_a_template_tells_what_it_reads():
    template = ChatTemplate("{% set own = 1 %}{{ own }}{% for m in messages %}{{ m }}{% endfor %}{{ tools }}")
    assert template.variables == {"messages", "tools"}


def files(tmp_path, **contents):
    for name, content in contents.items():
        path = tmp_path / name.replace("__", "/").replace("_DOT_", ".")
        path.parent.mkdir(exist_ok=True)
        path.write_text(content, encoding="utf-8")
    return tmp_path


def sources_of(templates):
    return {name: template.source for name, template in templates.by_name.items()}


def test_templates_are_found_wherever_a_checkpoint_keeps_them(tmp_path):
    assert load_chat_templates(tmp_path).default is None
    folder = files(
        tmp_path,
        tokenizer_config_DOT_json='{"chat_template": [{"name": "default", "template": "d"}, '
        '{"name": "tool_use", "template": "t"}], "bos_token": {"content": "<s>"}, "eos_token": "</s>"}',
    )
    templates = load_chat_templates(folder)
    assert sources_of(templates) == {"default": "d", "tool_use": "t"}
    assert templates.special_tokens == {"bos_token": "<s>", "eos_token": "</s>"}
    assert [templates.choose(has_tools).source for has_tools in (False, True)] == ["d", "t"]
    files(tmp_path, chat_template_DOT_json='{"chat_template": "from json"}')
    assert load_chat_templates(folder).default.source == "from json"
    files(tmp_path, chat_template_DOT_jinja="file", additional_chat_templates__rag_DOT_jinja="rag")
    assert sources_of(load_chat_templates(folder)) == {"default": "file", "tool_use": "t", "rag": "rag"}
    assert sources_of(load_chat_templates(folder, "{{ 'inline' }}")) == {"default": "{{ 'inline' }}"}
    own = tmp_path / "own.jinja"
    own.write_text("own")
    assert sources_of(load_chat_templates(folder, str(own))) == {"default": "own"}


def test_a_template_that_cannot_be_used_is_said_at_start(tmp_path):
    with pytest.raises(ConfigError, match=r"--chat-template: .*is no template, and no file"):
        load_chat_templates(tmp_path, str(tmp_path / "gone.jinja"))
    with pytest.raises(ConfigError, match="--chat-template: TemplateSyntaxError"):
        load_chat_templates(tmp_path, "{% if %}")
    with pytest.raises(LoadError, match=r"the chat template `default` in .*: TemplateSyntaxError"):
        load_chat_templates(files(tmp_path, chat_template_DOT_jinja="{% if %}"))
    with pytest.raises(LoadError, match="is no JSON"):
        load_chat_templates(files(tmp_path, tokenizer_config_DOT_json="{"))
