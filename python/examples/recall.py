"""Trains the paper's recall model in Python, then streams it in the runtime: python recall.py [STEPS] [FOLDER]"""

import sys
import tempfile

import torch

import tensorcache as tc
from tensorcache.torch import TensorCacheLM

STORE, GAP, QUERY, ANSWER, KEYS, VALUES, FILLERS, GAP_TOKENS = 0, 1, 2, 3, 4, 20, 36, 24


def batch(rows: int) -> torch.Tensor:
    """Fillers, then six times: a pair is stored, and asked for 24 tokens later, when the window of 12 has lost it."""
    parts = [torch.randint(FILLERS, FILLERS + 16, (rows, 7))]
    for _ in range(6):
        key, value = torch.randint(KEYS, VALUES, (rows, 1)), torch.randint(VALUES, FILLERS, (rows, 1))
        store, gap, query, answer = (torch.full((rows, 1), token) for token in (STORE, GAP, QUERY, ANSWER))
        noise = torch.randint(FILLERS, FILLERS + 16, (rows, GAP_TOKENS))
        parts += [store, key, value, gap, noise, query, key, answer, value]
    return torch.cat(parts, 1)


def answers(tokens: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (tokens[:, :-1] == ANSWER).nonzero(as_tuple=True)


steps = int(sys.argv[1]) if len(sys.argv) > 1 else 300
folder = sys.argv[2] if len(sys.argv) > 2 else tempfile.mkdtemp()
torch.manual_seed(0)
model = TensorCacheLM({"vocab_size": 52, "cache": {"window": 12}})
matrices = [p for name, p in model.named_parameters() if p.dim() > 1 and not name.endswith("_logit")]
others = [p for name, p in model.named_parameters() if p.dim() <= 1 or name.endswith("_logit")]  # decays, gates, norms
optimizer = torch.optim.AdamW([{"params": matrices}, {"params": others, "weight_decay": 0.0}], lr=1e-3, weight_decay=0.01)
for step in range(1, steps + 1):
    tokens = batch(32)
    row, column = answers(tokens)
    loss = torch.nn.functional.cross_entropy(model(tokens)[row, column], tokens[row, column + 1])
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if step % 50 == 0 or step == steps:
        print(f"step {step}: loss {loss.item():.4f}", flush=True)

model.save(folder, force=True)
runtime, right, asked = tc.Model(folder), 0, 0
for tokens in batch(20):
    logits = torch.from_numpy(runtime.session().prefill_logits(tokens.numpy()))
    (at,) = (tokens[:-1] == ANSWER).nonzero(as_tuple=True)
    right += int((logits[at].argmax(1) == tokens[at + 1]).sum())
    asked += len(at)
print(f"accuracy {right / asked:.3f} of {asked} answers, streamed from {folder}")
