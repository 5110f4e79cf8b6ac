#!/usr/bin/env python3
"""Writes attn_small.safetensors beside it: packed causal attention with grouped queries, each sample on its own.

Made with PyTorch 2.13 (CPU, float64) and safetensors; inputs are exact in bf16. Seed 20 gives the file that is committed.
"""
import json
import pathlib

import torch
from safetensors.torch import save_file

torch.manual_seed(20)
LENGTHS, H, HKV, D = [1, 5, 0, 19, 12], 4, 2, 20
T = sum(LENGTHS)


def random(*shape):
    return torch.randn(*shape).bfloat16()


q, k, v, do = random(T, H, D), random(T, HKV, D), random(T, HKV, D), random(T, H, D)
leaves = [t.double().requires_grad_() for t in (q, k, v)]
outputs, begin = [], 0
for length in LENGTHS:
    qs, ks, vs = (t[begin:begin + length].transpose(0, 1) for t in leaves)
    ks, vs = (t.repeat_interleave(H // HKV, 0) for t in (ks, vs))
    hidden = torch.ones(length, length).triu(1).bool()
    scores = (qs @ ks.transpose(1, 2) * D ** -0.5).masked_fill(hidden, float("-inf"))
    outputs.append((scores.softmax(-1) @ vs).transpose(0, 1))
    begin += length
o = torch.cat(outputs)
(o * do.double()).sum().backward()
cu = torch.tensor([0] + LENGTHS).cumsum(0).int()
tensors = {"q": q, "k": k, "v": v, "cu_seqlens": cu, "do": do, "o": o.detach().float()}
tensors |= {"d" + name: leaf.grad.float() for name, leaf in zip("qkv", leaves)}
save_file({n: t.contiguous() for n, t in tensors.items()}, pathlib.Path(__file__).with_suffix(".safetensors"),
          {"op": "varlen_attention", "params": json.dumps({"scale": D ** -0.5, "causal": True})})
