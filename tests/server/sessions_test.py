"""Sessions: read once, gone on with, forked, taken out and put into another server."""

import json
import unittest
import urllib.error
import urllib.request

import common


class Sessions(common.ServerTest):
    def call(self, method, path, body=None, server=None, kind="application/json"):
        data = body if isinstance(body, bytes) else json.dumps(body or {}).encode()
        url = (server or self.server).url + path
        request = urllib.request.Request(url, None if method in ("GET", "DELETE") else data, {"Content-Type": kind}, method=method)
        with urllib.request.urlopen(request) as answer:
            content = answer.read()
            return json.loads(content) if answer.headers["Content-Type"] == "application/json" else content

    def session(self, *texts, server=None):
        made = self.call("POST", "/sessions", server=server)["id"]
        for text in texts:
            self.call("POST", f"/sessions/{made}/append", dict(content=text), server=server)
        return made

    def go_on(self, session, prompt="", tokens=10, client=None, **fields):
        return (client or self.client).completions.create(
            model="small", prompt=prompt, max_tokens=tokens, seed=4, extra_body=dict(session=session, ignore_eos=True), **fields
        )

    def test_a_text_in_parts_is_the_text_at_once(self):
        text = "A text that is much longer than the window of this model, in " * 5
        whole = self.client.completions.create(
            model="small", prompt=text, max_tokens=30, seed=4, extra_body=dict(ignore_eos=True)
        )
        session = self.session(text)
        first = self.go_on(session, tokens=10)
        streamed, last = "", None
        for chunk in self.go_on(session, tokens=20, stream=True):
            streamed += "".join(choice.text for choice in chunk.choices)
            last = chunk
        self.assertEqual(first.choices[0].text + streamed, whole.choices[0].text)
        self.assertEqual(first.usage.prompt_tokens_details.cached_tokens, len(text))
        self.assertEqual(last.session["position"], len(text) + 30)
        self.assertEqual(last.session["state_bytes"], self.call("GET", f"/sessions/{self.session()}")["state_bytes"])

    def test_a_state_goes_on_in_another_server(self):
        session = self.session("Once upon a time")
        self.go_on(session, tokens=5)
        state = self.call("GET", f"/sessions/{session}/state")
        rest = self.go_on(session, tokens=20).choices[0].text
        other = common.Server(self.model)
        self.addCleanup(other.kill)
        moved = self.session(server=other)
        self.call("PUT", f"/sessions/{moved}/state", state, server=other, kind="application/octet-stream")
        self.assertEqual(self.go_on(moved, tokens=20, client=self.client_of(other)).choices[0].text, rest)

    def test_forks(self):
        session = self.session("Once upon a time")
        forks = [fork["id"] for fork in self.call("POST", f"/sessions/{session}/fork", dict(count=3))["data"]]
        self.assertEqual(len({session, *forks}), 4)
        replies = [self.go_on(fork, tokens=15).choices[0].text for fork in forks]
        self.assertEqual(len(set(replies)), 1)
        self.assertEqual(self.call("GET", f"/sessions/{session}")["position"], 16)
        other = self.go_on(forks[0], prompt="But", tokens=15).choices[0].text
        self.assertNotEqual(other, self.go_on(forks[1], prompt="And", tokens=15).choices[0].text)

    def test_errors(self):
        error = self.refusal(self.go_on, "sess_0")
        self.assertEqual((error.status_code, error.code), (404, "session_not_found"))
        error = self.refusal(self.go_on, self.session("x"), n=2)
        self.assertEqual((error.status_code, error.param), (400, "session"))
        error = self.refusal(self.go_on, self.session("x"), echo=True)
        self.assertEqual((error.status_code, error.param), (400, "echo"))
        error = self.refusal(self.go_on, self.session())
        self.assertEqual((error.status_code, error.param), (400, "prompt"))
        with self.assertRaises(urllib.error.HTTPError) as raised:
            self.call("PUT", f"/sessions/{self.session()}/state", b"garbage", kind="application/octet-stream")
        with raised.exception as answer:
            self.assertEqual(json.loads(answer.read())["error"]["code"], "state_corrupt")


if __name__ == "__main__":
    unittest.main(verbosity=2)
