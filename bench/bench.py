#!/usr/bin/env python3
"""Measures deltune, and next to it the Python stack when $DT_REFERENCE_PYTHON can import it (docs/benchmarks.md).

usage: ./dev bench [NAME...]      names: step, gdn, tokenizer, startup, init; without a name: all
Every comparison alternates between the two sides in one run and reports medians and their ratio. With one thread
(DT_BENCH_THREADS=1) processor time counts instead of the time that passes, so that other programs hardly matter.
"""
import json
import lzma
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = pathlib.Path(sys.argv[1]).resolve()
WORK = BUILD / "bench-work"
DELTUNE = str(BUILD / "deltune")
THREADS = int(os.environ.get("DT_BENCH_THREADS", "2"))
PYTHON = os.environ.get("DT_REFERENCE_PYTHON", "")

LINEAR, FULL = "linear_attention", "full_attention"


def shape(vocab, hidden, intermediate, layers, heads, kv_heads, key_heads, value_heads, tied, dtype):
    return {
        "architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text", "dtype": dtype,
        "vocab_size": vocab, "hidden_size": hidden, "intermediate_size": intermediate, "num_hidden_layers": layers,
        "layer_types": [FULL if (i + 1) % 4 == 0 else LINEAR for i in range(layers)],
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": 256,
        "linear_num_key_heads": key_heads, "linear_num_value_heads": value_heads, "linear_key_head_dim": 128,
        "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "hidden_act": "silu", "rms_norm_eps": 1e-6,
        "max_position_embeddings": 32768, "tie_word_embeddings": tied, "attention_bias": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000000, "partial_rotary_factor": 0.25,
                            "mrope_interleaved": True, "mrope_section": [11, 11, 10]},
    }


def run(command, **kwargs):
    """Runs to the end; returns (seconds, peak bytes, stdout); seconds as THREADS says. A failure ends the benchmark."""
    begin = time.perf_counter()
    with open(WORK / "stdout", "w+") as out, open(WORK / "stderr", "w+") as err:
        process = subprocess.Popen(command, stdout=out, stderr=err, **kwargs)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = usage.ru_utime + usage.ru_stime if THREADS == 1 else time.perf_counter() - begin
        out.seek(0)
        err.seek(0)
        text, errors = out.read(), err.read()
    if status != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{errors}")
    return seconds, usage.ru_maxrss * 1024, text


def reference(*arguments):
    env = dict(os.environ, OMP_NUM_THREADS=str(THREADS), TRANSFORMERS_VERBOSITY="error", HF_HUB_OFFLINE="1")
    _, peak, text = run([PYTHON, str(ROOT / "bench/reference.py"), *map(str, arguments)], env=env)
    return dict(json.loads(text.splitlines()[-1]), peak_bytes=peak)


def make_model(name, config):
    folder = WORK / name
    if not (folder / "config.json").exists():
        source = WORK / f"{name}.json"
        source.write_text(json.dumps(config))
        run([DELTUNE, "init", "--config", str(source), "--seed", "0", "--output_dir", str(folder)])
    return folder


def make_rows(name, vocab, lengths, share):
    """Already tokenised rows; the last `share` of each is a target."""
    path = WORK / f"{name}.jsonl"
    state = 1
    with open(path, "w") as out:
        for length in lengths:
            ids = []
            for _ in range(length):
                state = (state * 1103515245 + 12345) & 0x7FFFFFFF
                ids.append(state % vocab)
            start = round(length * (1 - share))
            out.write(json.dumps({"input_ids": ids, "labels": [-100] * start + ids[start:]}) + "\n")
    return path


def sft(model, rows, steps, name, *more):
    """LoRA on one pack; returns (seconds of the program, seconds of each step, peak bytes)."""
    output = WORK / name
    shutil.rmtree(output, ignore_errors=True)
    total, peak, _ = run([DELTUNE, "sft", "--model", str(model), "--dataset", str(rows), "--output_dir", str(output),
                          "--add_version", "false", "--packing", "true", "--max_length", "512", "--max_steps", str(steps),
                          "--per_device_train_batch_size", "1", "--gradient_accumulation_steps", "1",
                          "--gradient_checkpointing", "false", "--logging_steps", "1", "--save_strategy", "no",
                          "--report_to", "none", "--threads", str(THREADS), *more])
    lines = [json.loads(line) for line in open(output / "logging.jsonl")]
    lines = [line for line in lines if "loss" in line]
    ends = [line["train_speed(s/it)"] * (i + 1) for i, line in enumerate(lines)]
    return total, [b - a for a, b in zip([0.0] + ends, ends)], peak


def step_seconds(model, rows, name):
    """Seconds of steps after the first two, and the peak. The log has the time that passes; processor time comes from
    the difference of a long and a short run."""
    total, seconds, peak = sft(model, rows, 12, name)
    if THREADS > 1:
        return seconds[2:], peak
    return [(total - sft(model, rows, 2, name)[0]) / 10], peak


def mib(count):
    return f"{count / 2**20:,.0f} MiB"


def ratio_line(name, ours, theirs):
    print(f"  {name}: deltune {ours:.4f} s, reference {theirs:.4f} s, {theirs / ours:.2f}x the speed")


# ---- the benchmarks ----------------------------------------------------------------------------------------------

def bench_step():
    """Training step: hidden 512, 8 layers, LoRA r=8, one 512-token pack of three samples, 60% of tokens targets."""
    for vocab in (32768, 151936):
        model = make_model(f"step-{vocab}", shape(vocab, 512, 1536, 8, 4, 1, 4, 8, True, "float32"))
        rows = make_rows(f"step-{vocab}", vocab, [171, 171, 170], 0.6)
        ours, peaks, theirs, their_peaks = [], [], {"separate": [], "one_row": []}, []
        for _ in range(3):
            seconds, peak = step_seconds(model, rows, f"step-{vocab}-out")
            ours += seconds
            peaks.append(peak)
            for mode in theirs if PYTHON else ():
                result = reference("step", model, rows, mode, 5, THREADS)
                theirs[mode] += result["seconds"][2:]
                their_peaks.append((result["peak_bytes"], mode))
        print(f"step, vocabulary {vocab:,}: deltune {statistics.median(ours):.4f} s, peak {mib(max(peaks))}")
        for mode, seconds in theirs.items():
            if seconds:
                ratio_line(f"samples {mode}", statistics.median(ours), statistics.median(seconds))
        if their_peaks:
            smallest = min(their_peaks)
            print(f"  reference peak {mib(smallest[0])} ({smallest[1]}), deltune takes {max(peaks) / smallest[0]:.2f} of it")


def bench_gdn():
    """Gated delta rule, forward and backward: 32 value heads, 16 key heads of 128, 4,096 tokens in 24 samples."""
    lengths = [170] * 23 + [186]
    arguments = [str(n) for n in (32, 16, 128, THREADS)]
    ours, theirs = [], {"separate": [], "one_row": []}
    efficiency = []
    for _ in range(3):
        _, _, text = run([str(BUILD / "bench/gdn_bench"), *arguments, "5", *map(str, lengths)])
        result = json.loads(text)
        ours += result["seconds"]
        efficiency.append(result["operations"] / statistics.median(result["seconds"]) / result["blas_rate"])
        if PYTHON:
            measured = reference("gdn", *arguments, 2, *lengths)
            for mode in theirs:
                theirs[mode] += measured[mode]
    print(f"gdn: deltune ({result['provider']}) {statistics.median(ours):.4f} s, "
          f"{100 * statistics.median(efficiency):.0f}% of the BLAS rate ({result['blas_rate'] / 1e9:.0f} GFLOP/s)")
    for mode, seconds in theirs.items():
        if seconds:
            ratio_line(f"samples {mode}", statistics.median(ours), statistics.median(seconds))


def bench_startup():
    """From program start to the start of step 1: model of the 0.8B shape (bf16) in the page cache, a tokenizer, rows."""
    model = make_model("shape-0.8b", shape(248320, 1024, 3584, 24, 8, 2, 16, 16, True, "bfloat16"))
    shutil.copy(tokenizer_inputs()[0], model / "tokenizer.json")
    rows = ROOT / "data/sample/instructions.jsonl"
    for path in model.glob("*.safetensors"):
        with open(path, "rb") as file:
            while file.read(1 << 24):
                pass
    seconds = []
    for _ in range(3):
        total, _, _ = run([DELTUNE, "sft", "--model", str(model), "--dataset", str(rows), "--output_dir",
                           str(WORK / "startup-out"), "--add_version", "false", "--max_steps", "1", "--logging_steps", "1",
                           "--save_strategy", "no", "--report_to", "none", "--threads", str(THREADS)])
        log = [json.loads(line) for line in open(WORK / "startup-out/logging.jsonl")]
        step = next(line["train_speed(s/it)"] for line in log if "loss" in line)
        seconds.append(total - step)
        shutil.rmtree(WORK / "startup-out")
    print(f"startup, 0.8B shape: {statistics.median(seconds):.2f} s outside step 1 (start, and the end of the program)")


def bench_init():
    """Writing a random checkpoint of the 4B shape."""
    config = WORK / "4b.json"
    config.write_text(json.dumps(shape(248320, 2560, 9216, 32, 16, 4, 16, 32, True, "bfloat16")))
    folder = WORK / "shape-4b"
    seconds, peak, _ = run([DELTUNE, "init", "--config", str(config), "--seed", "0", "--output_dir", str(folder)])
    size = sum(path.stat().st_size for path in folder.iterdir())
    shutil.rmtree(folder)
    print(f"init, 4B shape: {seconds:.1f} s for {size / 1e9:.2f} GB, peak {mib(peak)}")


def tokenizer_inputs():
    """A tokenizer and texts: those the environment names, else Qwen3's and the public sets beside the checkout, else the
    sample that ships."""
    shared = ROOT.parent / "shared/data"
    packed = shared / "qwen3-tokenizer/tokenizer.json.xz"
    path = os.environ.get("DT_BENCH_TOKENIZER")
    files = [file for file in (os.environ.get("DT_BENCH_TEXTS") or "").split(":") if file]
    if not path and packed.exists():
        path = WORK / "qwen3-tokenizer.json"
        path.write_bytes(lzma.decompress(packed.read_bytes()))
    if not files:
        files = [file for file in (shared / "alpaca_zh_demo.json", shared / "alpaca_en_demo.json") if file.exists()]
    if not files:
        rows = (ROOT / "data/sample/instructions.jsonl").read_text().splitlines()
        files = [WORK / "sample.json"]
        files[0].write_text("[" + ",".join(rows) + "]")
    return path or ROOT / "data/sample/tokenizer.json", files


def bench_tokenizer():
    """Encoding on one thread, beside the tokenizers package; and cutting into pieces, beside PCRE2."""
    path, files = tokenizer_inputs()
    ours, split, pcre2, theirs = [], [], [], []
    for _ in range(3):
        _, _, text = run([str(BUILD / "bench/tokenizer_bench"), str(path), *map(str, files)])
        result = json.loads(text)
        ours += result["seconds"]
        split += result["split_seconds"]
        pcre2 += result["pcre2_seconds"]
        if PYTHON:
            other = reference("tokenizer", path, *files)
            theirs += other["seconds"]
            if other["tokens"] != result["tokens"]:
                sys.exit(f"tokenizer: {result['tokens']} tokens here, {other['tokens']} there")
    seconds = statistics.median(ours)
    print(f"tokenizer: {result['bytes'] / 1e6:.2f} MB in {result['texts']} texts, {result['tokens']} tokens: "
          f"{seconds * 1e3:.1f} ms, {result['bytes'] / seconds / 1e6:.0f} MB/s; "
          f"the tokenizer opens in {result['open_seconds'] * 1e3:.0f} ms")
    ratio_line("PCRE2 JIT, pieces alone", statistics.median(split), statistics.median(pcre2))
    if theirs:
        ratio_line("tokenizers package, one thread", seconds, statistics.median(theirs))


def main():
    benches = {name[6:]: function for name, function in globals().items() if name.startswith("bench_")}
    names = sys.argv[2:] or list(benches)
    for name in names:
        if name not in benches:
            sys.exit(f"there is no benchmark {name}; there are {', '.join(benches)}")
    WORK.mkdir(parents=True, exist_ok=True)
    cpu = re.search(r"model name\s*:\s*(.*)", pathlib.Path("/proc/cpuinfo").read_text())
    print(f"{cpu.group(1) if cpu else 'unknown CPU'}, {THREADS} threads; reference: {PYTHON or 'none (set DT_REFERENCE_PYTHON)'}")
    for name in names:
        benches[name]()


main()
