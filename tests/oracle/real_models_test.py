"""The two small pretrained models of ../shared/data against transformers: logits and NLL on stories, greedy text."""

import common
import llama2c
import models
from tokenizers import Tokenizer

# In the words of the stories that both were trained on.
STORIES = [
    "Once upon a time, there was a little girl named Lily. She loved to play with her red ball in the "
    "park. One day, she saw a big dog near the tree. The dog wanted to play too. Lily was scared at "
    "first, but the dog was very kind. They played with the ball all day and became good friends. When "
    'the sun went down, Lily\'s mom came to take her home. "Can the dog come with us?" Lily asked. Her mom'
    ' smiled and said, "Yes, he can." Lily was so happy. She gave the dog a big hug. From that day on, '
    "they played together every day.",
    "Tom had a small boat. He liked to sail it on the pond. One day the wind was strong and the boat went"
    ' far away. Tom was sad. He asked a duck for help.\n"Duck, can you bring me my boat?" he said.\nThe '
    'duck nodded and swam fast. It pushed the boat with its nose. Soon the boat was back. "Thank you, '
    'duck!" said Tom. He gave the duck some bread. They sat in the sun and watched the water. Tom learned'
    " that it is good to ask for help when you need it.\n",
    "Ben and Mia were in the kitchen. Mom made a cake with 3 eggs, milk & sugar. \"Don't touch it, it's "
    'hot!" she said. But Ben was hungry... He took a bite. Ouch! His tongue hurt. He cried and cried. Mia'
    ' gave him cold water. "You should listen," she said — and Ben never did it again. The café\'s cat '
    "looked at them: miau! 🙂",
]
CONTEXT = 512
# What llama2.c writes with stories260K at temperature 0 in 200 steps, as its own tests have it.
LLAMA2C_TEXT = """\
Once upon a time, there was a little girl named Lily. She loved to play outside in the park. One day, she saw a big, \
red ball. She wanted to play with it, but it was too high.
Lily's mom said, "Lily, let's go to the park." Lily was sad and didn't know what to do. She said, "I want to play \
with your ball, but I can't find it."
Lily was sad and didn't know what to do. She said, "I'm sorry, Lily. I didn't know what to do."
Lily didn't want to help her mom, so she"""


class RealModel(models.ModelTest):
    def texts(self):
        """The stories one by one, and all of them, again and again, up to the trained length."""
        return [*STORIES, "\n".join(STORIES * 4)]

    def check_texts(self, folder, theirs, encoded):
        for tokens in encoded:
            with self.subTest(tokens=len(tokens)):
                self.check_model(folder, theirs, tokens[:CONTEXT])

    def check_greedy(self, folder, theirs, prompt, count=200):
        ours = self.probe_json("greedy", folder, prompt, count=str(count))
        self.assertEqual(ours, models.greedy(theirs, prompt, count))
        return ours


@common.needs_data("models", "tinystories-656k")
class TinyStories656K(RealModel):
    def setUp(self):
        super().setUp()
        original = common.DATA / "models" / "tinystories-656k"
        self.theirs = models.load(original)
        # transformers builds one of its own from the file, which leaves unknown characters out.
        self.tokenizer = Tokenizer.from_file(str(original / "tokenizer.json"))
        self.ours = self.imported(original)

    def test_tokens(self):
        expected = [self.tokenizer.encode(text, add_special_tokens=False).ids for text in self.texts()]
        self.assertEqual(self.probe_json("encode", self.ours, self.texts()), expected)

    def test_logits_and_nll(self):
        self.check_texts(self.ours, self.theirs, [self.tokenizer.encode(text).ids for text in self.texts()])

    def test_greedy_text(self):
        for start in ("", "Once upon a time", "Tom had a small boat. He"):
            with self.subTest(start):
                prompt = self.tokenizer.encode(start).ids
                self.assertEqual(prompt[0], 1)
                self.check_greedy(self.ours, self.theirs, prompt)


@common.needs_data("models", "stories260K")
class Stories260K(RealModel):
    def setUp(self):
        super().setUp()
        original = common.DATA / "models" / "stories260K"
        self.theirs = models.ready(llama2c.read_model(original / "stories260K.bin"))
        self.tokenizer = llama2c.Tokenizer(original / "tok512.bin")
        self.ours = self.imported(original / "stories260K.bin", "--tokenizer", original / "tok512.bin")

    def test_tokens(self):
        texts = [*self.texts(), "", " ", "  two", "a\nb", "é漢🙂", "\t", "<s>", "zzzz qqq", "1234", "'\"", "\u0000"]
        tokens = [self.tokenizer.encode(text) for text in texts]
        self.assertEqual(self.probe_json("encode", self.ours, texts), tokens)
        decoded = [bytes.fromhex(text) for text in self.probe_json("decode", self.ours, tokens)]
        self.assertEqual(decoded, [self.tokenizer.decode(list_) for list_ in tokens])
        self.assertEqual(decoded, [text.encode() for text in texts])

    def test_logits_and_nll(self):
        encoded = [[self.tokenizer.BOS, *self.tokenizer.encode(text)] for text in self.texts()]
        self.check_texts(self.ours, self.theirs, encoded)

    def test_greedy_text(self):
        for start in ("", "Once upon a time", "Tom had a small boat. He"):
            with self.subTest(start):
                self.check_greedy(self.ours, self.theirs, [self.tokenizer.BOS, *self.tokenizer.encode(start)])

    def test_text_of_llama2c(self):
        tokens = self.probe_json("greedy", self.ours, [self.tokenizer.BOS], count="200")
        self.assertEqual(self.tokenizer.decode(tokens).decode(), LLAMA2C_TEXT)
        self.assertEqual(bytes.fromhex(self.probe_json("decode", self.ours, [tokens])[0]).decode(), LLAMA2C_TEXT)


if __name__ == "__main__":
    common.main()
