"""Models as transformers runs them, and how their numbers are compared with ours."""

import common
import numpy
import torch
import transformers

torch.set_num_threads(1)


EPSILON = float(numpy.finfo(numpy.float32).eps)


def tolerance(logits, rope=True):
    """How far fp32 logits may be from these, (tokens, vocabulary), as (tokens, 1).

    The unit is the spread of a position's logits. Sums of some hundred products in another order leave 60 eps (7e-6)
    in these models: allowed twice. Positions add to that. transformers rounds rotary frequencies and their products
    with the position to fp32, half an eps each, so at token t the angles of a query and of a key are off by up to t
    eps each, and the score by 2 t eps of its size, which is about 1; ours are exact to the last bit. Measured: 60 +
    1.06 t eps at most (3.9e-5 at token 248), and no more than at the start once transformers is given exact angles."""
    spread = logits.std(axis=1, keepdims=True)
    position = numpy.arange(len(logits))[:, None]
    return spread * EPSILON * (128 + (2 * position if rope else 0))


def load(folder):
    """In fp32, whatever the file's type; attention as plain products and a softmax. No token ends a text."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        str(folder), dtype=torch.float32, attn_implementation="eager"
    )
    return ready(model)


def ready(model):
    model.set_attn_implementation("eager")
    model.generation_config = transformers.GenerationConfig(do_sample=False, pad_token_id=0)
    return model.eval()


def randomise(model, seed):
    """Weights that make every part of the model matter. Those of the library's own initialisation are so small that
    logits are nearly flat and attention nearly even, with norms of 1 and biases of 0. Here products keep about the
    size of what they multiply, attention is somewhat sharp, and norms and biases differ from column to column."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim == 1:
                is_norm = name.endswith("weight")
                parameter.copy_(1 + 0.2 * noise if is_norm else 0.2 * noise)
            elif "wpe" in name:
                parameter.copy_(0.5 * noise)
            elif "wte" in name or "embed" in name or "lm_head" in name:
                parameter.copy_(noise * 2 / parameter.shape[1] ** 0.5)
            else:
                inputs = parameter.shape[0] if "c_" in name else parameter.shape[1]  # GPT-2 stores them transposed
                parameter.copy_(noise * 1.2 / inputs**0.5)
    return ready(model)


def random_tokens(vocabulary, count, seed):
    return numpy.random.default_rng(seed).integers(0, vocabulary, count).tolist()


@torch.no_grad()
def logits_of(model, tokens):
    """float32 (tokens, vocabulary)"""
    return model(torch.tensor([tokens]), use_cache=False).logits[0].float().numpy()


@torch.no_grad()
def greedy(model, tokens, count):
    """With the library's own cache and loop."""
    prompt = torch.tensor([tokens])
    # Without a mask, tokens that equal the one for padding would be taken as such.
    return model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=count)[
        0, len(tokens) :
    ].tolist()


def nll_of(logits, tokens):
    """Of tokens 1 and later."""
    scores = torch.log_softmax(torch.from_numpy(logits[:-1]).double(), dim=-1)
    return -scores[torch.arange(len(tokens) - 1), torch.tensor(tokens[1:])].numpy()


class ModelTest(common.OracleTest):
    def check_logits(self, ours, theirs, rope=True):
        self.assertEqual(ours.shape, theirs.shape)
        ratio = numpy.abs(ours - theirs) / tolerance(theirs, rope)
        worst = numpy.unravel_index(numpy.argmax(ratio), ratio.shape)
        self.worst_ratio = max(getattr(self, "worst_ratio", 0), ratio[worst])
        self.assertFalse(numpy.isnan(ratio).any())
        self.assertLessEqual(
            ratio[worst],
            1,
            f"at (position, token) {worst}: ours {ours[worst]}, theirs {theirs[worst]}, in units of what is allowed",
        )

    def check_model(self, folder, theirs, tokens, rope=True, count=48):
        """Our model in `folder` against `theirs`: logits however the text is cut, greedy text, NLL."""
        expected = logits_of(theirs, tokens)
        for split in ("prefill", "steps", "halves"):
            with self.subTest(split=split):
                self.check_logits(self.probe_logits(folder, tokens, split=split), expected, rope)
        with self.subTest("nll"):
            nll = self.probe_json("nll", folder, tokens)
            self.assertIsNone(nll[0])
            # A shift of all logits by d changes the NLL by 2 d at most.
            difference = numpy.abs(numpy.array(nll[1:]) - nll_of(expected, tokens))
            self.assertLessEqual((difference / (2 * tolerance(expected, rope)[:-1, 0])).max(), 1)
        with self.subTest("greedy"):
            prompt = tokens[: min(40, len(tokens))]
            self.assertEqual(self.probe_json("greedy", folder, prompt, count=str(count)), greedy(theirs, prompt, count))
        print(f"largest difference of logits: {self.worst_ratio:.2f} of what is allowed", flush=True)

    def imported(self, folder, *options):
        result = self.folder / f"imported.{len(list(self.folder.iterdir()))}"
        self.tensorcache("import", "--from", folder, "--out", result, *options)
        return result

    def exported(self, folder, *options):
        result = self.folder / f"exported.{len(list(self.folder.iterdir()))}"
        self.tensorcache("export", "--model", folder, "--out", result, *options)
        return result
