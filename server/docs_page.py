"""The page at `/docs`: shows what `/openapi.json` says, and sends requests. One file, without any network.

Text from the description is only ever set as text, never as HTML.
"""

CONTENT_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

PAGE = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>mambad API</title>
<style>
  :root { color-scheme: light dark }
  body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
  code, pre, textarea { font: 13px/1.45 ui-monospace, monospace }
  details { border: 1px solid #8886; border-radius: 6px; margin: .5rem 0; padding: .4rem .8rem }
  summary { cursor: pointer }
  b.method { display: inline-block; min-width: 4.5rem }
  table { border-collapse: collapse; width: 100% }
  td, th { border-top: 1px solid #8884; padding: .2rem .6rem .2rem 0; text-align: left; vertical-align: top }
  textarea, input { width: 100%; box-sizing: border-box }
  textarea { height: 8rem }
  pre { background: #8881; padding: .6rem; overflow: auto; max-height: 30rem; white-space: pre-wrap }
</style>
<h1></h1>
<p id="about"></p>
<p><label>API key, if one is asked for <input id="key" type="password" autocomplete="off"></label></p>
<div id="paths">Loading…</div>
<script>
const make = (name, text, ...children) => {
  const node = document.createElement(name);
  if (text) node.textContent = text;
  node.append(...children);
  return node;
};
let document_;
const resolve = schema => schema && schema.$ref
  ? document_.components.schemas[schema.$ref.split('/').pop()] : schema || {};
const kind = schema => {
  if (schema.$ref) return schema.$ref.split('/').pop();
  const options = schema.anyOf || schema.oneOf;
  if (options) return options.map(kind).join(' | ');
  if ('const' in schema) return JSON.stringify(schema.const);
  if (schema.enum) return schema.enum.map(value => JSON.stringify(value)).join(' | ');
  if (schema.type === 'array') return `array of ${kind(schema.items || {})}`;
  const limits = ['minimum', 'maximum', 'exclusiveMinimum', 'minLength', 'maxLength', 'minItems', 'maxItems',
    'pattern'].filter(name => name in schema).map(name => `${name} ${schema[name]}`);
  return (schema.type || 'any') + (limits.length ? ` (${limits.join(', ')})` : '');
};
const fields = schema => {
  const table = make('table', '', make('tr', '', make('th', 'field'), make('th', 'type'), make('th', '')));
  for (const [name, field] of Object.entries(schema.properties || {}))
    table.append(make('tr', '', make('td', '', make('code', name)), make('td', kind(field)),
      make('td', field.description || '')));
  return table;
};
const root = location.pathname.replace(/\\/docs$/, '');
const send = async (method, path, body, output) => {
  const key = document.getElementById('key').value;
  const headers = key ? { authorization: `Bearer ${key}` } : {};
  if (body !== undefined) headers['content-type'] = 'application/json';
  output.textContent = '…';
  try {
    const answer = await fetch(root + path, { method, headers, body });
    output.textContent = `${answer.status}\\n`;
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let part; !(part = await reader.read()).done;) output.textContent += part.value;
  } catch (error) { output.textContent = String(error); }
};
const show = (path, method, operation) => {
  const box = make('details', '', make('summary', '', Object.assign(make('b', method.toUpperCase()),
    { className: 'method' }), make('code', path), make('span', ` ${operation.summary || ''}`)));
  box.append(make('p', operation.description || ''));
  const parameters = operation.parameters || [];
  if (parameters.length) box.append(fields({ properties: Object.fromEntries(parameters.map(each =>
    [each.name, { ...each.schema, description: each.description }])) }));
  const content = operation.requestBody && operation.requestBody.content['application/json'];
  if (content) box.append(make('h4', 'Body'), fields(resolve(content.schema)));
  const answers = make('table');
  for (const [status, answer] of Object.entries(operation.responses || {}))
    answers.append(make('tr', '', make('td', status), make('td', answer.description || ''),
      make('td', Object.entries(answer.content || {}).map(([type, value]) =>
        `${type}: ${kind(value.schema || {})}`).join('; '))));
  box.append(make('h4', 'Answers'), answers, make('h4', 'Try it'));
  const target = Object.assign(make('input'), { value: path });
  const text = Object.assign(make('textarea'), { value: content ? '{\\n  \\n}' : '' });
  const button = make('button', 'Send'), output = make('pre');
  button.onclick = () => send(method.toUpperCase(), target.value, content ? text.value : undefined, output);
  box.append(target, ...(content ? [text] : []), button, output);
  return box;
};
fetch(`${root}/openapi.json`).then(answer => answer.json()).then(found => {
  document_ = found;
  document.querySelector('h1').textContent = `${found.info.title} ${found.info.version}`;
  document.getElementById('about').textContent = found.info.description || '';
  const list = document.getElementById('paths');
  list.textContent = '';
  for (const [path, operations] of Object.entries(found.paths))
    for (const [method, operation] of Object.entries(operations)) list.append(show(path, method, operation));
}).catch(error => { document.getElementById('paths').textContent = String(error); });
</script>
</html>
"""
