"""litellm: chats, streams, tools, schemas, text completions, and the exceptions that routers act upon."""

import asyncio
import json
import os
import sys

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm
from client_cases import Cases, arguments, raises, same

case = Cases()
USER = {"role": "user", "content": "What news, my lord?"}
PARAMETERS = {
    "type": "object",
    "properties": {"to": {"enum": ["king", "queen"]}, "soon": {"type": "boolean"}},
    "required": ["to", "soon"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "send", "parameters": PARAMETERS}}


def asked(client, **options):
    url, key = client
    common = {"model": "hosted_vllm/demo", "api_base": f"{url}/v1", "api_key": key, "messages": [USER]}
    return {**common, "seed": 1, "max_tokens": 300, "num_retries": 0, **options}


@case
def a_chat_is_the_same_streamed(client):
    whole = litellm.completion(**asked(client))
    assert whole.choices[0].message.content
    options = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = list(litellm.completion(**asked(client, **options)))
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    same(text, whole.choices[0].message.content)
    (usage,) = [chunk.usage for chunk in chunks if getattr(chunk, "usage", None)]
    same(usage.completion_tokens, whole.usage.completion_tokens)


@case
def openai_as_the_provider_works_too(client):
    whole = litellm.completion(**asked(client, model="openai/demo"))
    assert whole.choices[0].message.content


@case
def text_completions_work(client):
    options = {"model": "text-completion-openai/demo", "prompt": "Now is the winter", "temperature": 0}
    body = {name: value for name, value in asked(client, **options).items() if name != "messages"}
    whole = litellm.text_completion(**body)
    assert whole.choices[0].text
    chunks = litellm.text_completion(**body, stream=True)
    same("".join(chunk.choices[0].text or "" for chunk in chunks), whole.choices[0].text)


@case
def forced_calls_and_schemas_are_kept_to(client):
    # As `hosted_vllm` it would take `additionalProperties` and `strict` out of schemas.
    forced = {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False}
    message = litellm.completion(**asked(client, model="openai/demo", **forced)).choices[0].message
    (call,) = message.tool_calls
    same(call.function.name, "send")
    same(set(json.loads(call.function.arguments)), {"to", "soon"})
    schema = {"name": "order", "schema": PARAMETERS, "strict": True}
    form = {"type": "json_schema", "json_schema": schema}
    answer = litellm.completion(**asked(client, model="openai/demo", response_format=form))
    text = answer.choices[0].message.content
    same(set(json.loads(text)), {"to", "soon"})


@case
def many_at_once_get_their_own_answers(client):
    alone = litellm.completion(**asked(client, temperature=0)).choices[0].message.content

    async def all_of_them():
        return await asyncio.gather(*(litellm.acompletion(**asked(client, temperature=0)) for _ in range(8)))

    same({answer.choices[0].message.content for answer in asyncio.run(all_of_them())}, {alone})


@case
def errors_are_what_routers_act_upon(client):
    long = [{"role": "user", "content": "x " * 30_000}]
    raises(litellm.ContextWindowExceededError, lambda: litellm.completion(**asked(client, messages=long)))
    raises(litellm.BadRequestError, lambda: litellm.completion(**asked(client, temperature=9)))
    other = asked(client, model="hosted_vllm/other")
    raises(litellm.NotFoundError, lambda: litellm.completion(**other))
    stranger = asked(client, api_key="wrong")
    raises(litellm.AuthenticationError, lambda: litellm.completion(**stranger))


if __name__ == "__main__":
    sys.exit(case.run(arguments(), ["litellm-core", "openai"]))
