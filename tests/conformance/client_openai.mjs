// The official JavaScript client: models, completions, chats, tools, schemas, responses, errors.
//
//     node client_openai.mjs URL KEY        (in a folder whose node_modules holds `openai`)
//
// The last line of output is JSON for the runner, as in client_cases.py.

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";
import path from "node:path";

const require = createRequire(path.join(process.cwd(), "none.js"));
const found = require.resolve("openai");
const { default: OpenAI } = await import(pathToFileURL(found).href.replace(/\.js$/, ".mjs"));
const { VERSION } = await import(new URL("./version.mjs", pathToFileURL(found)).href);

const [url, apiKey] = process.argv.slice(2);
const options = { baseURL: `${url}/v1`, apiKey, maxRetries: 0, timeout: 60_000 };
const client = new OpenAI(options);
const greedy = { model: "demo", prompt: "Now is the winter", temperature: 0, max_tokens: 24 };
const messages = [{ role: "user", content: "What news, my lord?" }];
const chat = { model: "demo", messages, seed: 1, max_completion_tokens: 200 };
const schema = {
  type: "object",
  properties: { to: { enum: ["king", "queen"] }, men: { type: "integer", minimum: 0, maximum: 9 } },
  required: ["to", "men"],
  additionalProperties: false,
};
const tools = [{ type: "function", function: { name: "send", parameters: schema } }];

function checkOrder(text) {
  const order = JSON.parse(text);
  assert.deepEqual(Object.keys(order), ["to", "men"]);
  assert.ok(["king", "queen"].includes(order.to));
}

async function collect(stream) {
  const chunks = [];
  for await (const chunk of stream) chunks.push(chunk);
  return chunks;
}

const cases = {
  async modelsAreListedAndDescribed() {
    const ids = (await collect(await client.models.list())).map((model) => model.id);
    assert.deepEqual(ids, ["demo"]);
    assert.equal((await client.models.retrieve("demo")).object, "model");
  },

  async aCompletionIsTheSameStreamed() {
    const whole = await client.completions.create(greedy);
    assert.equal(whole.choices[0].finish_reason, "length");
    const asked = { ...greedy, stream: true, stream_options: { include_usage: true } };
    const chunks = await collect(await client.completions.create(asked));
    const text = chunks.flatMap((chunk) => chunk.choices).map((choice) => choice.text).join("");
    assert.equal(text, whole.choices[0].text);
    assert.deepEqual(chunks.at(-1).usage, whole.usage);
  },

  async aPromptIsScored() {
    const asked = { ...greedy, echo: true, max_tokens: 0, logprobs: 1 };
    const [choice] = (await client.completions.create(asked)).choices;
    assert.equal(choice.text, greedy.prompt);
    assert.equal(choice.logprobs.token_logprobs[0], null);
  },

  async aChatIsTheSameStreamed() {
    const whole = await client.chat.completions.create(chat);
    const chunks = await collect(await client.chat.completions.create({ ...chat, stream: true }));
    const text = chunks.flatMap((chunk) => chunk.choices).map((choice) => choice.delta.content ?? "").join("");
    assert.equal(text, whole.choices[0].message.content);
    const reasons = chunks.flatMap((chunk) => chunk.choices).map((choice) => choice.finish_reason);
    assert.deepEqual(reasons.filter(Boolean), [whole.choices[0].finish_reason]);
  },

  async theStreamHelperPutsAChatTogether() {
    const whole = await client.chat.completions.create(chat);
    const final = await client.chat.completions.stream(chat).finalContent();
    assert.equal(final, whole.choices[0].message.content);
  },

  async aForcedCallKeepsToItsSchema() {
    const asked = { ...chat, tools, tool_choice: "required", parallel_tool_calls: false };
    const [choice] = (await client.chat.completions.create(asked)).choices;
    assert.equal(choice.finish_reason, "tool_calls");
    assert.equal(choice.message.tool_calls[0].function.name, "send");
    checkOrder(choice.message.tool_calls[0].function.arguments);
    const streamed = (await client.chat.completions.stream(asked).finalChatCompletion()).choices[0];
    const [call] = streamed.message.tool_calls;
    assert.equal(call.function.arguments, choice.message.tool_calls[0].function.arguments);
  },

  async aNamedFunctionIsCalled() {
    const asked = { ...chat, tools, tool_choice: { type: "function", function: { name: "send" } } };
    const [choice] = (await client.chat.completions.create(asked)).choices;
    checkOrder(choice.message.tool_calls[0].function.arguments);
  },

  async aSchemaIsKeptTo() {
    const format = { type: "json_schema", json_schema: { name: "order", schema, strict: true } };
    const [choice] = (await client.chat.completions.parse({ ...chat, response_format: format })).choices;
    checkOrder(choice.message.content);
  },

  async aResponseIsTheSameStreamedAndGoesOn() {
    const asked = { model: "demo", input: "What news?", max_output_tokens: 60, temperature: 0 };
    const whole = await client.responses.create(asked);
    const streamed = await client.responses.stream(asked).finalResponse();
    assert.ok(whole.output_text);
    assert.equal(streamed.output_text, whole.output_text);
    const next = await client.responses.create({ ...asked, previous_response_id: whole.id });
    assert.equal(next.previous_response_id, whole.id);
    assert.equal((await client.responses.retrieve(whole.id)).output_text, whole.output_text);
    await client.responses.delete(whole.id);
    await assert.rejects(client.responses.retrieve(whole.id), OpenAI.NotFoundError);
  },

  async errorsAreTheExceptionsThatTheyMean() {
    const tooLong = { ...greedy, prompt: "x ".repeat(30_000), stream: true };
    await assert.rejects(client.completions.create({ ...greedy, top_p: 0 }), { param: "top_p", status: 400 });
    await assert.rejects(client.completions.create(tooLong), { code: "context_length_exceeded" });
    await assert.rejects(client.completions.create({ ...greedy, model: "x" }), OpenAI.NotFoundError);
    const stranger = new OpenAI({ ...options, apiKey: "wrong" });
    await assert.rejects(stranger.models.list(), OpenAI.AuthenticationError);
  },

  async aStreamMayBeLeft() {
    const stream = await client.completions.create({ ...greedy, max_tokens: 1000, stream: true });
    for await (const chunk of stream) if (chunk) break;
    assert.ok((await client.completions.create(greedy)).choices.length);
  },

  async eightAtOnceGetWhatOneAloneGets() {
    const alone = (await client.completions.create(greedy)).choices[0].text;
    const answers = await Promise.all(Array.from({ length: 8 }, () => client.completions.create(greedy)));
    assert.deepEqual([...new Set(answers.map((answer) => answer.choices[0].text))], [alone]);
  },
};

const failures = [];
for (const [name, run] of Object.entries(cases)) {
  try {
    await run();
  } catch (error) {
    console.error(name, error);
    failures.push(`${name}: ${String(error).slice(0, 1500)}`);
  }
}
const version = `openai (npm) ${VERSION}, node ${process.version}`;
console.log(JSON.stringify({ version, cases: Object.keys(cases).length, failures }));
process.exitCode = failures.length ? 1 : 0;
