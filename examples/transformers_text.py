"""MPELU in a text model of transformers: BERT, small and from scratch, on a made-up task.

pip install transformers
python examples/transformers_text.py
"""

from __future__ import annotations

import torch
from transformers import BertConfig, BertForSequenceClassification

import mpelu


def main() -> None:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=100, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=128, num_labels=2, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model = BertForSequenceClassification(config)
    # Is the word 7 in the text?
    tokens = torch.randint(8, 100, (256, 16))
    tokens[::2, 5] = 7
    labels = (torch.arange(256) + 1) % 2

    # The activation is transformers' own class; it is recognized by what it computes, GELU.
    print(mpelu.convert(model, {"input_ids": tokens[:8]}))
    adamw = torch.optim.AdamW
    optimizer = adamw(mpelu.param_groups(model, lr=2e-3, weight_decay=1e-2, optimizer=adamw))
    losses = []
    for step in range(40):
        rows = slice(step * 64 % 256, step * 64 % 256 + 64)
        loss = model(input_ids=tokens[rows], labels=labels[rows]).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(f"loss {losses[0]:.2f} -> {losses[-1]:.2f}")


if __name__ == "__main__":
    main()
