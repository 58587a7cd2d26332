"""/v1/completions and what is around it, asked by OpenAI's client."""

import asyncio
import http.client
import json
import math
import threading
import unittest
import urllib.request

import openai

import common

GO_ON = dict(extra_body=dict(ignore_eos=True))  # past the end-of-text token


class Completions(common.ServerTest):
    def complete(self, **fields):
        fields = dict(model="small", prompt="Hello", max_tokens=12, seed=7) | fields
        return self.client.completions.create(**fields)

    def test_models(self):
        self.assertEqual([model.id for model in self.client.models.list()], ["small"])
        self.assertEqual(self.client.models.retrieve("small").owned_by, "tensorcache")
        self.assertEqual(self.refusal(self.client.models.retrieve, "large").code, "model_not_found")

    def test_the_same_request_gives_the_same_text(self):
        first, again, other = self.complete(), self.complete(), self.complete(seed=8)
        self.assertEqual(first.choices[0].text, again.choices[0].text)
        self.assertNotEqual(first.choices[0].text, other.choices[0].text)
        self.assertEqual(first.usage.prompt_tokens, 5)
        self.assertEqual(first.usage.completion_tokens, 12)
        self.assertEqual(first.choices[0].finish_reason, "length")

    def test_a_stream_is_the_same_text(self):
        whole = self.complete(n=3, logprobs=2)
        texts, reasons, tokens = [""] * 3, [None] * 3, [[], [], []]
        usage = None
        for chunk in self.complete(n=3, logprobs=2, stream=True, stream_options=dict(include_usage=True)):
            usage = chunk.usage or usage
            for choice in chunk.choices:
                texts[choice.index] += choice.text
                reasons[choice.index] = choice.finish_reason or reasons[choice.index]
                if choice.logprobs:
                    tokens[choice.index] += choice.logprobs.token_logprobs
        self.assertEqual(texts, [choice.text for choice in whole.choices])
        self.assertEqual(reasons, [choice.finish_reason for choice in whole.choices])
        self.assertEqual(tokens, [choice.logprobs.token_logprobs for choice in whole.choices])
        self.assertEqual(usage, whole.usage)

    def test_async_clients(self):
        async def run():
            async with self.client_of(self.server, kind=openai.AsyncOpenAI) as client:
                ask = lambda seed: client.completions.create(model="small", prompt="Hello", max_tokens=20, seed=seed)
                together = await asyncio.gather(*(ask(seed) for seed in range(40)))
                text = ""
                async for chunk in await client.completions.create(
                    model="small", prompt="Hello", max_tokens=20, seed=3, stream=True
                ):
                    text += chunk.choices[0].text
                return [reply.choices[0].text for reply in together], text

        together, streamed = asyncio.run(run())
        alone = [self.complete(seed=seed, max_tokens=20).choices[0].text for seed in (0, 3, 39)]
        self.assertEqual([together[0], together[3], together[39]], alone)
        self.assertEqual(streamed, together[3])

    def test_stop(self):
        text = self.complete(max_tokens=60).choices[0].text
        stop = text[20:23]
        reply = self.complete(max_tokens=60, stop=[stop, "never written"]).choices[0]
        self.assertEqual(reply.text, text[: text.index(stop)])
        self.assertEqual(reply.finish_reason, "stop")

    def test_the_end_of_text_ends_it(self):
        reply = self.complete(logit_bias={"256": 100})
        self.assertEqual((reply.choices[0].text, reply.choices[0].finish_reason), ("", "stop"))
        reply = self.complete(logit_bias={"256": 100}, max_tokens=3, extra_body=dict(ignore_eos=True))
        self.assertEqual((reply.choices[0].text, reply.choices[0].finish_reason), ("<|endoftext|>" * 3, "length"))

    def test_several_prompts_and_tokens(self):
        reply = self.complete(prompt=[[72, 105], [72, 111]], temperature=0, n=2)
        self.assertEqual([choice.index for choice in reply.choices], [0, 1, 2, 3])
        self.assertEqual(reply.choices[0].text, reply.choices[1].text)
        self.assertEqual(reply.choices[0].text, self.complete(prompt="Hi", temperature=0).choices[0].text)
        self.assertEqual(reply.usage.prompt_tokens, 4)

    def test_scores_as_harnesses_ask_for_them(self):
        """As lm-evaluation-harness does: tokens in, echoed with log-probabilities, one more token that is dropped."""
        context, text = "Once upon", " a time"
        tokens = list((context + text).encode())
        choice = self.complete(prompt=[tokens], max_tokens=1, temperature=0, logprobs=1, echo=True).choices[0]
        scores, best = choice.logprobs.token_logprobs, choice.logprobs.top_logprobs
        self.assertIsNone(scores[0])
        self.assertEqual(len(scores), len(tokens) + 1)
        self.assertTrue(choice.text.startswith(context + text))
        self.assertEqual("".join(choice.logprobs.tokens[: len(tokens)]), context + text)
        self.assertEqual(choice.logprobs.text_offset[: len(tokens)], list(range(len(tokens))))
        self.assertEqual(scores[-1], max(best[-1].values()))
        for i in range(len(context), len(tokens)):
            self.assertLessEqual(scores[i], max(best[i].values()))
            # The same probability as of the token alone behind what stands before.
            alone = self.complete(prompt=[tokens[:i]], max_tokens=1, logprobs=0, logit_bias={str(tokens[i]): 100})
            self.assertAlmostEqual(scores[i], alone.choices[0].logprobs.token_logprobs[0], delta=1e-3)
        self.assertLess(sum(scores[len(context) : -1]), 0)

    def test_unsupported_and_wrong_fields(self):
        error = self.refusal(self.complete, suffix="the end")
        self.assertEqual((error.status_code, error.code, error.param), (400, "unsupported_parameter", "suffix"))
        error = self.refusal(self.complete, extra_body=dict(max_tokes=3))
        self.assertEqual((error.status_code, error.code, error.param), (400, "unknown_parameter", "max_tokes"))
        error = self.refusal(self.complete, temperature=3)
        self.assertEqual((error.status_code, error.code, error.param), (400, "invalid_value", "temperature"))
        self.assertIsInstance(self.refusal(self.complete, model="gpt-4"), openai.NotFoundError)

    def test_special_tokens_only_where_they_are_asked_for(self):
        plain = self.post("/tokenize", content="<|im_start|>")
        self.assertEqual(plain["tokens"], list(b"<|im_start|>"))
        special = self.post("/tokenize", content="<|im_start|>x", parse_special=True, with_pieces=True)
        self.assertEqual(special, dict(tokens=[257, 120], pieces=["<|im_start|>", "x"]))
        self.assertEqual(self.post("/detokenize", tokens=[104, 257])["content"], "h<|im_start|>")
        self.assertEqual(self.complete(prompt="<|im_start|>").usage.prompt_tokens, 12)

    def test_metrics_can_be_parsed(self):
        self.complete()
        with urllib.request.urlopen(self.server.url.removesuffix("/v1") + "/metrics") as answer:
            self.assertTrue(answer.headers["Content-Type"].startswith("text/plain; version=0.0.4"))
            lines = answer.read().decode().splitlines()
        types, values = {}, {}
        for line in lines:
            if line.startswith("# TYPE "):
                name, kind = line.split()[2:]
                self.assertNotIn(name, types)
                types[name] = kind
            elif not line.startswith("# HELP "):
                name, value = line.rsplit(" ", 1)
                self.assertNotIn(name, values)
                values[name] = float(value)
                family = name.split("{")[0]
                base = [family.removesuffix(suffix) for suffix in ("_bucket", "_sum", "_count", "")]
                self.assertTrue(any(name in types for name in base), line)
        for name in (name for name, kind in types.items() if kind == "histogram"):
            counts = [value for key, value in values.items() if key.startswith(name + "_bucket")]
            self.assertEqual(counts, sorted(counts))
            self.assertEqual(counts[-1], values[name + "_count"])
        self.assertGreaterEqual(values['tensorcache_requests_total{route="/v1/completions",status="200"}'], 1)

    def post(self, path, **fields):
        request = urllib.request.Request(
            self.server.url.removesuffix("/v1") + path, json.dumps(fields).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request) as answer:
            return json.loads(answer.read())


class Keys(common.ServerTest):
    @classmethod
    def prepare(cls, model):
        keys = cls.folder / "keys"
        keys.write_text("# for tests\nfirst-key-of-two-keys\nsecond-key-of-two-keys\n")
        cls.arguments = ("--api-key-file", keys)

    def test_only_keys_open(self):
        for key, opens in (("first-key-of-two-keys", True), ("second-key-of-two-keys", True), ("third-key-of-two-keys", False)):
            client = self.client_of(self.server, key)
            if opens:
                self.assertEqual(client.models.list().data[0].id, "small")
            else:
                self.assertIsInstance(self.refusal(client.models.list), openai.AuthenticationError)


class Ends(common.ServerTest):
    def test_sigterm_lets_what_runs_end(self):
        server = common.Server(self.model)
        self.addCleanup(server.kill)
        client = self.client_of(server)
        stream = client.completions.create(model="small", prompt="x", max_tokens=3000, seed=1, stream=True, **GO_ON)
        first = next(stream).choices[0].text
        statuses = []
        stopping = threading.Thread(target=lambda: statuses.append(server.stop()))
        stopping.start()
        text = first + "".join(chunk.choices[0].text for chunk in stream)
        stopping.join()
        self.assertEqual(statuses, [0])
        whole = self.client.completions.create(model="small", prompt="x", max_tokens=3000, seed=1, **GO_ON)
        self.assertEqual(text, whole.choices[0].text)

    def test_what_does_not_end_is_cut_with_an_error(self):
        server = common.Server(self.model, "--drain", 0, "--max-tokens", 10**9)
        self.addCleanup(server.kill)
        stream = self.client_of(server).completions.create(model="small", prompt="x", max_tokens=10**9, stream=True, **GO_ON)
        next(stream)
        server.process.terminate()
        with self.assertRaises(openai.APIError) as raised:
            for chunk in stream:
                pass
        self.assertEqual(raised.exception.code, "shutting_down")
        self.assertEqual(server.wait(), 0)

    def test_a_client_that_goes_away_costs_nothing_more(self):
        server = common.Server(self.model, "--max-tokens", 10**9, "--max-batch", 1)
        self.addCleanup(server.kill)
        client = self.client_of(server)
        stream = client.completions.create(model="small", prompt="x", max_tokens=10**9, stream=True, **GO_ON)
        next(stream)
        stream.close()
        # The only place is free again.
        self.assertEqual(client.completions.create(model="small", prompt="x", max_tokens=3).usage.completion_tokens, 3)

    def test_a_full_queue_says_when_to_come_back(self):
        server = common.Server(self.model, "--max-tokens", 10**9, "--max-batch", 1, "--queue", 1)
        self.addCleanup(server.kill)
        metrics = lambda: urllib.request.urlopen(server.url.removesuffix("/v1") + "/metrics").read().decode()
        running = self.ask(server, max_tokens=10**9)
        self.assertTrue(common.wait_until(lambda: "tensorcache_sequences_running 1" in metrics()))
        waiting = self.ask(server, max_tokens=3)
        self.assertTrue(common.wait_until(lambda: "tensorcache_requests_waiting 1" in metrics()))
        error = self.refusal(self.client_of(server).completions.create, model="small", prompt="x")
        self.assertIsInstance(error, openai.RateLimitError)
        self.assertEqual(error.code, "queue_full")
        self.assertTrue(math.isfinite(float(error.response.headers["retry-after"])))
        running.close()
        self.assertEqual(waiting.getresponse().status, 200)
        waiting.close()

    @staticmethod
    def ask(server, **fields):
        """A connection on which the answer will come."""
        connection = http.client.HTTPConnection(server.url.split("/")[2], timeout=60)
        body = json.dumps(dict(prompt="x", ignore_eos=True) | fields)
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        return connection


if __name__ == "__main__":
    unittest.main(verbosity=2)
