"""What `helm test` runs in the cluster: the first model completes a text. Standard library only."""

import json
import os
import urllib.request

URL = os.environ["URL"]
KEYS = os.environ.get("API_KEYS", "").split()
HEADERS = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {KEYS[0]}"} if KEYS else {})


def ask(path, body=None):
    """Return the JSON that the server answers with."""
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(URL + path, data, HEADERS), timeout=60) as answer:
        return json.load(answer)


model = ask("/v1/models")["data"][0]["id"]
answer = ask("/v1/completions", {"model": model, "prompt": "Now is the winter", "max_tokens": 4})
assert answer["usage"]["completion_tokens"] > 0, answer
print(model, repr(answer["choices"][0]["text"]))
