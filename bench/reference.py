"""The PyTorch side of the benchmarks: transformers + peft on a CPU. Run by bench.py with $DT_REFERENCE_PYTHON.

usage: reference.py step MODEL_FOLDER ROWS.jsonl MODE STEPS THREADS     MODE: separate | one_row
       reference.py gdn HEADS_V HEADS_K WIDTH THREADS ROUNDS LENGTH...
       reference.py tokenizer TOKENIZER.json FILE...
Prints one JSON object.
"""
import json
import resource
import sys
import time

clock = time.perf_counter


def peak_bytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def use_threads(torch, threads):
    """With one thread processor time counts, so that other programs hardly matter."""
    global clock
    torch.set_num_threads(threads)
    clock = time.process_time if threads == 1 else time.perf_counter


def step(folder, rows_file, mode, steps, threads):
    """One training step a time: forward and backward over the samples, clipping, AdamW. LoRA r=8 on all linears."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    use_threads(torch, threads)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")
    targets = "q_proj k_proj v_proj o_proj gate_proj up_proj down_proj in_proj_qkv in_proj_z in_proj_b in_proj_a out_proj"
    model = get_peft_model(model, LoraConfig(r=8, lora_alpha=32, lora_dropout=0.05, target_modules=targets.split(),
                                             task_type="CAUSAL_LM"))
    model.train()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)

    rows = [json.loads(line) for line in open(rows_file)]
    samples = [(torch.tensor([r["input_ids"]]), torch.tensor([r["labels"]])) for r in rows]
    if mode == "one_row":
        samples = [tuple(torch.cat(parts, dim=1) for parts in zip(*samples))]
    count = sum(int((labels[0, 1:] != -100).sum()) for _, labels in samples)

    seconds, losses = [], []
    for _ in range(steps):
        begin = clock()
        total = 0.0
        for ids, labels in samples:
            loss = model(input_ids=ids, labels=labels, num_items_in_batch=count).loss
            loss.backward()
            total += float(loss.detach())
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(clock() - begin)
        losses.append(total)
    print(json.dumps({"seconds": seconds, "losses": losses, "peak_bytes": peak_bytes()}))


def gdn(heads_v, heads_k, width, threads, rounds, lengths):
    """Forward and backward of the fallback of transformers, sample by sample and as one row (which leaks; for its time)."""
    import torch
    from transformers.models.qwen3_5.modeling_qwen3_5 import torch_chunk_gated_delta_rule

    use_threads(torch, threads)
    torch.manual_seed(0)

    def inputs(length):
        repeat = heads_v // heads_k
        make = lambda *shape: torch.randn(*shape, requires_grad=True)
        q, k, v = make(1, length, heads_k, width), make(1, length, heads_k, width), make(1, length, heads_v, width)
        g = (-torch.rand(1, length, heads_v)).requires_grad_()
        beta = torch.rand(1, length, heads_v, requires_grad=True)
        return lambda: torch_chunk_gated_delta_rule(
            q.repeat_interleave(repeat, dim=2), k.repeat_interleave(repeat, dim=2), v, g, beta,
            use_qk_l2norm_in_kernel=True)[0]

    result = {}
    for name, cut, times in (("separate", lengths, rounds), ("one_row", [sum(lengths)], 1)):  # the second is far slower
        calls = [inputs(n) for n in cut]
        seconds = []
        for _ in range(times):
            begin = clock()
            for call in calls:
                out = call()
                out.backward(torch.ones_like(out))
            seconds.append(clock() - begin)
        result[name] = seconds
    print(json.dumps(result))


def tokenizer(path, files):
    """The tokenizers package on one thread, by the faster of its two ways: text by text, or as one batch without offsets."""
    import os
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    from tokenizers import Tokenizer

    tok = Tokenizer.from_file(path)
    texts = [text for name in files for row in json.load(open(name, encoding="utf-8")) for text in row.values()
             if text and isinstance(text, str)]
    one_by_one = lambda: (tok.encode(text, add_special_tokens=False) for text in texts)
    batch = lambda: tok.encode_batch_fast(texts, add_special_tokens=False)
    best = None
    for encode in (one_by_one, batch):
        seconds = []
        for _ in range(5):
            begin = clock()
            tokens = sum(len(encoding.ids) for encoding in encode())
            seconds.append(clock() - begin)
        best = min(best or seconds, seconds, key=min)
    print(json.dumps({"seconds": best, "texts": len(texts), "tokens": tokens}))


if __name__ == "__main__":
    what, rest = sys.argv[1], sys.argv[2:]
    if what == "step":
        step(rest[0], rest[1], rest[2], int(rest[3]), int(rest[4]))
    elif what == "gdn":
        gdn(int(rest[0]), int(rest[1]), int(rest[2]), int(rest[3]), int(rest[4]), [int(n) for n in rest[5:]])
    elif what == "tokenizer":
        tokenizer(rest[0], rest[1:])
    else:
        sys.exit(__doc__)
