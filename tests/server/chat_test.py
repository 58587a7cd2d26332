"""/v1/chat/completions, asked by OpenAI's client."""

import asyncio
import pathlib
import unittest

import openai

import common

TEMPLATE = pathlib.Path(__file__).parent / "templates" / "chatml.jinja"
HELLO = [dict(role="system", content="Be brief."), dict(role="user", content="Hello!")]


class Chat(common.ServerTest):
    @classmethod
    def prepare(cls, model):
        (model / "chat_template.jinja").write_text(TEMPLATE.read_text())
        (model / "generation_config.json").write_text('{"eos_token_id": [256, 258]}')

    def chat(self, **fields):
        fields = dict(model="small", messages=HELLO, max_completion_tokens=12, seed=7) | fields
        return self.client.chat.completions.create(**fields)

    def test_a_chat_is_the_completion_of_its_template(self):
        reply = self.chat(logprobs=True, top_logprobs=2)
        prompt = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in HELLO) + "<|im_start|>assistant\n"
        tokens = []
        for i, part in enumerate(prompt.split("<|")):
            if i:
                name, part = part.split("|>", 1)
                tokens.append({"im_start": 257, "im_end": 258}[name])
            tokens += part.encode()
        same = self.client.completions.create(model="small", prompt=tokens, max_tokens=12, seed=7, logprobs=2)
        choice = reply.choices[0]
        self.assertEqual(choice.message.role, "assistant")
        self.assertEqual(choice.message.content, same.choices[0].text)
        self.assertEqual(reply.usage.prompt_tokens, len(tokens))
        self.assertEqual(
            [token.logprob for token in choice.logprobs.content], same.choices[0].logprobs.token_logprobs
        )
        for token in choice.logprobs.content:
            self.assertEqual(len(token.top_logprobs), 2)
            if not token.token.startswith("bytes:"):
                self.assertEqual(bytes(token.bytes).decode(), token.token)

    def test_a_stream_is_the_same_text(self):
        whole = self.chat(n=2, logprobs=True)
        texts, reasons, roles, scores = ["", ""], [None, None], [[], []], [[], []]
        usage = None
        for chunk in self.chat(n=2, logprobs=True, stream=True, stream_options=dict(include_usage=True)):
            self.assertEqual(chunk.object, "chat.completion.chunk")
            usage = chunk.usage or usage
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
                roles[choice.index] += [choice.delta.role] if choice.delta.role else []
                reasons[choice.index] = choice.finish_reason or reasons[choice.index]
                scores[choice.index] += [token.logprob for token in choice.logprobs.content] if choice.logprobs else []
        self.assertEqual(texts, [choice.message.content for choice in whole.choices])
        self.assertEqual(reasons, [choice.finish_reason for choice in whole.choices])
        self.assertEqual(scores, [[token.logprob for token in choice.logprobs.content] for choice in whole.choices])
        self.assertEqual(roles, [["assistant"], ["assistant"]])
        self.assertEqual(usage, whole.usage)

    def test_async_clients(self):
        async def run():
            async with self.client_of(self.server, kind=openai.AsyncOpenAI) as client:
                stream = await client.chat.completions.create(
                    model="small", messages=HELLO, max_completion_tokens=12, seed=7, stream=True
                )
                return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

        self.assertEqual(asyncio.run(run()), self.chat().choices[0].message.content)

    def test_a_turn_ends_where_the_model_ends_it(self):
        reply = self.chat(logit_bias={"258": 100}).choices[0]
        self.assertEqual((reply.message.content, reply.finish_reason), ("", "stop"))

    def test_parts_and_names(self):
        parts = [dict(type="text", text="Hel"), dict(type="text", text="lo!")]
        messages = [dict(role="developer", content="Be brief."), dict(role="user", content=parts, name="me")]
        self.assertEqual(self.chat(messages=messages).choices, self.chat().choices)

    def test_what_is_not_done_is_refused(self):
        tool = dict(type="function", function=dict(name="f", parameters={}))
        for fields, param in (
            (dict(tools=[tool]), "tools"),
            (dict(response_format=dict(type="json_object")), "response_format"),
            (dict(messages=[dict(role="user", content=[dict(type="image_url", image_url=dict(url="x"))])]), "messages[0].content[0].type"),
            (dict(reasoning_effort="low"), "reasoning_effort"),
        ):
            error = self.refusal(self.chat, **fields)
            self.assertEqual((error.status_code, error.code, error.param), (400, "unsupported_parameter", param))
        self.assertEqual(self.refusal(self.chat, messages=[]).param, "messages")

    def test_a_model_without_a_template(self):
        server = common.Server(common.write_model(self.folder / "plain"))
        self.addCleanup(server.kill)
        error = self.refusal(self.client_of(server).chat.completions.create, model="plain", messages=HELLO)
        self.assertEqual((error.status_code, error.code), (400, "no_chat_template"))


if __name__ == "__main__":
    unittest.main(verbosity=2)
