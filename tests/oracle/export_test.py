"""What we export, transformers loads again: the same numbers as from the folder that was imported, bit for bit."""

import json

import common
import llama2c
import models
import sentencepiece
import torch
import transformers
from families import LLAMA3_ROPE, gpt2, llama, mistral, qwen2, save
from safetensors.torch import load_file, save_file

CASES = {
    "llama": lambda: llama(),
    "llama, tied": lambda: llama(tie_word_embeddings=True),
    "llama, biases and llama3 rope": lambda: llama(
        attention_bias=True, mlp_bias=True, head_dim=20, rope_parameters=dict(LLAMA3_ROPE)
    ),
    "llama, linear rope": lambda: llama(
        rope_parameters={"rope_type": "linear", "rope_theta": 20000.0, "factor": 3.0}, rms_norm_eps=0.05
    ),
    "qwen2": lambda: qwen2(rope_parameters={"rope_type": "default", "rope_theta": 1000000.0}),
    "qwen2, tied": lambda: qwen2(tie_word_embeddings=True),
    "mistral with a window": lambda: mistral(),
    "mistral without": lambda: mistral(sliding_window=None),
    "gpt2": lambda: gpt2(),
    "gpt2, silu, inner width": lambda: gpt2(activation_function="silu", n_inner=92, layer_norm_epsilon=0.05),
}


def content(folder):
    """Every file; of tensors the bits."""
    files = {}
    for path in sorted(folder.iterdir()):
        if path.suffix == ".safetensors":
            tensors = load_file(path)
            files[path.name] = {
                name: (t.dtype, t.shape, t.view(torch.uint8).numpy().tobytes()) for name, t in tensors.items()
            }
        elif path.suffix == ".json":
            files[path.name] = json.loads(path.read_text())
        else:
            files[path.name] = path.read_bytes()
    return files


class Export(models.ModelTest):
    def check_round_trip(self, original, *options):
        """Exported, it computes what `original` does, and imported again it is what it was."""
        ours = self.imported(original, *options)
        exported = self.exported(ours)
        again = self.imported(exported)
        before, after = content(ours), content(again)
        # llama2.c has no file for the names of the tokens that begin and end a text; the exported folder has.
        self.assertLessEqual(set(after) - set(before), {"tokenizer_config.json"})
        for name in before:
            self.assertEqual(before[name], after.get(name), name)
        return exported

    def check_same_logits(self, theirs, exported, tokens):
        difference = models.logits_of(models.load(exported), tokens) - models.logits_of(theirs, tokens)
        self.assertEqual(abs(difference).max(), 0)

    def test_families(self):
        tokens = models.random_tokens(131, 200, seed=8)
        for name, make in CASES.items():
            for dtype in (torch.float32, torch.bfloat16):
                with self.subTest(name, dtype=dtype):
                    original = save(make(), self.folder / f"{name} {dtype}", dtype=dtype)
                    exported = self.check_round_trip(original)
                    self.check_same_logits(models.load(original), exported, tokens)

    def test_loads_without_complaints(self):
        """No tensor is missing, surplus or of another shape."""
        for name, make in CASES.items():
            with self.subTest(name):
                original = save(make(), self.folder / name)
                exported = self.exported(self.imported(original))
                _, report = transformers.AutoModelForCausalLM.from_pretrained(str(exported), output_loading_info=True)
                self.assertEqual({key: list(value) for key, value in report.items() if value}, {})

    def test_overwrites_only_if_told(self):
        first, second = save(llama(seed=1), self.folder / "first"), save(llama(seed=9), self.folder / "second")
        ours, theirs = self.folder / "ours", self.folder / "theirs"
        self.tensorcache("import", "--from", first, "--out", ours)
        self.tensorcache("export", "--model", ours, "--out", theirs)
        before = content(ours), content(theirs)
        commands = [["import", "--from", second, "--out", ours], ["export", "--model", ours, "--out", theirs]]
        for command in commands:
            self.tensorcache_error(*command)
        self.assertEqual((content(ours), content(theirs)), before)
        for command in commands:
            self.tensorcache(*command, "--force")
        self.check_same_logits(models.load(second), theirs, models.random_tokens(131, 20, seed=8))

    def test_drops_a_memory(self):
        """A Mistral that was given a memory, without it, is that Mistral."""
        original = save(mistral(), self.folder / "original")
        ours = self.imported(original)
        config = json.loads((ours / "config.json").read_text())
        self.assertEqual((config["cache"]["method"], config["cache"]["window"]), ("window", 48))
        config["cache"]["method"] = "tensor_cache"
        (ours / "config.json").write_text(json.dumps(config))
        tensors = {name: tensor.clone() for name, tensor in load_file(ours / "model.safetensors").items()}
        for layer in range(3):
            memory = f"model.layers.{layer}.self_attn.tensor_cache."
            tensors[memory + "o_proj.weight"] = torch.full((72, 120), 0.1)
            tensors[memory + "gate"] = torch.ones(1)
            tensors[memory + "lambda_logit"] = torch.full((2, 1), 3.0)
            tensors[memory + "eta_logit"] = torch.zeros(2, 1)
        save_file(tensors, ours / "model.safetensors")
        tokens = models.random_tokens(131, 200, seed=8)
        expected = models.logits_of(models.load(original), tokens)
        self.assertGreater(abs(self.probe_logits(ours, tokens) - expected).max(), 0.1)
        self.assertIn("--drop-memory", self.tensorcache_error("export", "--model", ours, "--out", self.folder / "kept"))
        exported = self.exported(ours, "--drop-memory")
        self.check_same_logits(models.load(original), exported, tokens)

    @common.needs_data("models", "tinystories-656k")
    def test_tinystories_656k(self):
        original = common.DATA / "models" / "tinystories-656k"
        exported = self.check_round_trip(original)
        text = "Once upon a time, there was a little girl named Lily. It's 12 o'clock!\n  🙂"
        theirs = transformers.AutoTokenizer.from_pretrained(str(original))
        back = transformers.AutoTokenizer.from_pretrained(str(exported))
        tokens = theirs(text).input_ids
        self.assertEqual(back(text).input_ids, tokens)
        self.assertEqual(back.decode(tokens), theirs.decode(tokens))
        self.assertEqual(back.bos_token_id, theirs.bos_token_id)
        self.assertEqual(back.eos_token_id, theirs.eos_token_id)
        self.check_same_logits(models.load(original), exported, tokens)

    @common.needs_data("models", "stories260K")
    def test_stories260k(self):
        original = common.DATA / "models" / "stories260K"
        exported = self.check_round_trip(original / "stories260K.bin", "--tokenizer", original / "tok512.bin")
        theirs = models.ready(llama2c.read_model(original / "stories260K.bin"))
        expected = llama2c.Tokenizer(original / "tok512.bin")
        back = transformers.AutoTokenizer.from_pretrained(str(exported))
        pieces = sentencepiece.SentencePieceProcessor(model_file=str(exported / "tokenizer.model"))
        for text in (
            "Once upon a time, there was a little girl named Lily.",
            "two  spaces\n",
            " one before",
            "é漢🙂 12",
            "",
        ):
            with self.subTest(text):
                tokens = expected.encode(text)
                self.assertEqual(pieces.encode(text), tokens)
                self.assertEqual(pieces.decode(tokens), text)
                if not text.startswith(" "):  # transformers adds a space only where there is none
                    self.assertEqual(back(text, add_special_tokens=False).input_ids, tokens)
                    self.assertEqual(back.decode(tokens), text)
        self.assertEqual((back.bos_token_id, back.eos_token_id), (expected.BOS, expected.EOS))
        self.check_same_logits(theirs, exported, [expected.BOS, *expected.encode("Once upon a time, there was a cat.")])


if __name__ == "__main__":
    common.main()
