#!/usr/bin/env python3
"""Measures training on an NVIDIA GPU: the table of docs/benchmarks.md, in one run on one card (about two minutes).

usage: ./dev bench cuda                       builds, then measures
       bench/cuda/bench.py FOLDER [--model FOLDER] [--output FOLDER] [--steps N]
FOLDER holds deltune, libdeltune-cuda.so, cuda_check and cuda_gemm_bench; on a machine without a compiler they are brought
along. --model: a checkpoint of the 4B shape instead of making one (8.4 GB). Writes results.json and table.md to --output.
Needs the standard library alone. Time and memory of a row come from the same run of `deltune sft`.
"""
import argparse
import datetime
import json
import math
import pathlib
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time

LAYERS, HIDDEN, VOCABULARY = 32, 2560, 248320
# The matrices of the model: name in cuda_gemm_bench -> (layers that have it, outputs, inputs).
PRODUCTS = {"in_proj": (24, 12352, 2560), "qkv": (8, 10240, 2560), "out_proj": (32, 2560, 4096),
            "gate_up": (32, 18432, 2560), "down": (32, 2560, 9216)}
HEAD = VOCABULARY * HIDDEN
PARAMETERS = HEAD + sum(n * out * inner for n, out, inner in PRODUCTS.values())
GIB = 2**30


def model_config():
    kinds = ["full_attention" if (i + 1) % 4 == 0 else "linear_attention" for i in range(LAYERS)]
    return {
        "architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text", "dtype": "bfloat16",
        "vocab_size": VOCABULARY, "hidden_size": HIDDEN, "intermediate_size": 9216, "num_hidden_layers": LAYERS,
        "layer_types": kinds, "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 256,
        "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128,
        "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "hidden_act": "silu", "rms_norm_eps": 1e-6,
        "max_position_embeddings": 32768, "tie_word_embeddings": True, "attention_bias": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000000, "partial_rotary_factor": 0.25,
                            "mrope_interleaved": True, "mrope_section": [11, 11, 10]},
    }


def write_rows(path, tokens):
    """Tokenised rows of 171 tokens on average, all targets; every three fill 512 tokens, so that packs are exactly full."""
    draw = random.Random(1)
    with open(path, "w") as out:
        for _ in range(tokens // 512):
            first = draw.randint(100, 240)
            second = draw.randint(max(60, 232 - first), min(280, 452 - first))
            for length in (first, second, 512 - first - second):
                ids = [draw.randrange(VOCABULARY) for _ in range(length)]
                out.write(json.dumps({"input_ids": ids, "labels": ids}) + "\n")


def query(fields):
    """What nvidia-smi says about the first card, or {} where there is no nvidia-smi."""
    try:
        text = subprocess.run(["nvidia-smi", "-i", "0", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"],
                              capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return {}
    return dict(zip(fields, (part.strip() for part in text.strip().splitlines()[0].split(","))))


class Monitor(threading.Thread):
    """The highest memory use and the clocks that nvidia-smi shows while something runs."""

    def __init__(self):
        super().__init__(daemon=True)
        self.memory, self.clocks, self.done = 0.0, [], threading.Event()

    def run(self):
        while not self.done.wait(0.2):
            seen = query(["memory.used", "clocks.sm", "utilization.gpu"])
            try:
                self.memory = max(self.memory, float(seen["memory.used"]) / 1024)
                if float(seen["utilization.gpu"]) > 50:
                    self.clocks.append(float(seen["clocks.sm"]))
            except (KeyError, ValueError):
                pass

    def stop(self):
        self.done.set()
        self.join()


class Bench:
    def __init__(self, options):
        self.bin = options.folder.resolve()
        self.output = options.output.resolve()
        self.output.mkdir(parents=True, exist_ok=True)
        self.work = pathlib.Path(tempfile.mkdtemp(dir=self.output))
        self.steps = options.steps
        self.model = options.model

    def call(self, program, *arguments):
        """Runs a program to its end; its output. A failure ends the benchmark."""
        command = [str(self.find(program)), *map(str, arguments)]
        result = subprocess.run(command, capture_output=True, text=True)
        if result.returncode != 0:
            sys.exit(f"{' '.join(command)}: exit code {result.returncode}\n{result.stdout[-2000:]}{result.stderr[-2000:]}")
        return result.stdout

    def find(self, program):
        for path in (self.bin / program, self.bin / "src/providers/cuda" / program):
            if path.exists():
                return path
        sys.exit(f"{self.bin}: there is no {program}; build it, or name the folder that holds it")

    def check(self):
        """What would end the benchmark later ends it here, before gigabytes are written."""
        for program in ("cuda_check", "cuda_gemm_bench"):
            self.find(program)
        self.call("deltune", "ops", "--device", "cuda")

    def make_model(self):
        if self.model:
            return None
        (self.work / "4b.json").write_text(json.dumps(model_config()))
        self.model = self.work / "model"
        begin = time.perf_counter()
        self.call("deltune", "init", "--config", self.work / "4b.json", "--seed", 0, "--output_dir", self.model)
        return time.perf_counter() - begin

    def warm(self):
        """The page cache is warm: the weights were read once."""
        for path in pathlib.Path(self.model).glob("*.safetensors"):
            with open(path, "rb", buffering=0) as file:
                while file.read(1 << 26):
                    pass

    def sft(self, tokens, recompute):
        """One run: LoRA r=8, alpha 32, dropout 0.05 on all linear maps, one pack of `tokens` a step, no logging to disk but
        the log. Times are those of the run's own log, the start is seen from outside."""
        name = f"{tokens}-{'recompute' if recompute else 'keep'}"
        command = [str(self.find("deltune")), "sft", "--model", str(self.model), "--dataset", str(self.work / "rows.jsonl"),
                   "--tuner_type", "lora", "--lora_rank", "8", "--lora_alpha", "32", "--lora_dropout", "0.05",
                   "--target_modules", "all-linear", "--torch_dtype", "bfloat16", "--packing", "true",
                   "--packing_strategy", "sequential", "--dataset_shuffle", "false", "--max_length", str(tokens),
                   "--per_device_train_batch_size", "1", "--gradient_accumulation_steps", "1",
                   "--max_steps", str(self.steps), "--gradient_checkpointing", "true" if recompute else "false",
                   "--logging_steps", "1", "--save_strategy", "no", "--report_to", "none", "--add_version", "false",
                   "--output_dir", str(self.work / name), "--device", "cuda", "--plugin",
                   str(self.find("libdeltune-cuda.so"))]
        monitor = Monitor()
        monitor.start()
        begin = time.perf_counter()
        first_line, said = None, []
        with open(self.work / "stderr", "w+") as errors:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
            for line in process.stdout:
                if first_line is None and line.startswith("{'loss'"):
                    first_line = time.perf_counter() - begin
                said.append(line)
            code = process.wait()
            monitor.stop()
            errors.seek(0)
            if code != 0:
                sys.exit(f"{' '.join(command)}: exit code {code}\n{''.join(said)[-2000:]}{errors.read()[-2000:]}")
        lines = [json.loads(line) for line in open(self.work / name / "logging.jsonl")]
        lines = [line for line in lines if "loss" in line]
        ends = [line["train_speed(s/it)"] * (i + 1) for i, line in enumerate(lines)]
        steps = [b - a for a, b in zip([0.0] + ends, ends)]
        steady = steps[len(steps) // 3:]
        median = statistics.median(steady)
        if not all(math.isfinite(line["loss"]) and math.isfinite(line["grad_norm"]) for line in lines):
            sys.exit(f"{name}: a loss or gradient norm is not finite")
        return {"tokens": tokens, "recompute": recompute, "steps": len(steps), "ms": 1e3 * median,
                "ms_low": 1e3 * min(steady), "ms_high": 1e3 * max(steady), "first_step_ms": 1e3 * steps[0],
                "first_over_median": steps[0] / median, "start_s": first_line - steps[0],
                "peak_gib": max(line["memory(GiB)"] for line in lines), "nvidia_smi_gib": monitor.memory,
                "clock_mhz": statistics.median(monitor.clocks) if monitor.clocks else None,
                "first_loss": lines[0]["loss"], "last_loss": lines[-1]["loss"], "seconds": ends[-1]}

    def operators(self):
        """Delta rule and convolution at 32,768 tokens of 195 samples: (op -> line of cuda_check)."""
        path = self.work / "operators.json"
        for name in ("copy", "gdn", "conv"):
            self.call("cuda_check", "--bench", name, "--json", path)
        found = [json.loads(line) for line in open(path)]
        large = {line["op"]: line for line in found if line.get("tokens") == 32768 and line.get("samples") == 195}
        large["copy"] = next((line for line in found if line["op"] == "copy"), None)
        return large

    def gemm(self):
        """Rate of the model's products, forward and input gradient, as the library runs them by its first choice: all
        operations of a step by the time they take. {rows: TFLOP/s}"""
        text = self.call("cuda_gemm_bench", "first")
        pattern = re.compile(r"(\S+) +(y|dx|logits|dh) +(\d+) x +(\d+) x +(\d+) \* +([\d.]+) us")
        micros = {(m[1], m[2], int(m[3])): float(m[6]) for m in pattern.finditer(text)}
        rates = {}
        for rows, head_rows in ((512, 512), (8192, 1024)):
            seconds, operations = 0.0, 0.0
            for name, (layers, out, inner) in PRODUCTS.items():
                seconds += layers * (micros[name, "y", rows] + micros[name, "dx", rows]) * 1e-6
                operations += layers * 4.0 * rows * out * inner
            pieces = rows // head_rows
            seconds += pieces * (micros["head", "logits", head_rows] + micros["head", "dh", head_rows]) * 1e-6
            operations += 4.0 * rows * HEAD
            rates[rows] = operations / seconds * 1e-12
        return rates


def gemm_share(run, rates):
    """(4 P + recomputed 2 P) x tokens / rate / time of a step; the fused head is not recomputed."""
    operations = (4 * PARAMETERS + (2 * (PARAMETERS - HEAD) if run["recompute"] else 0)) * run["tokens"]
    return operations / (rates[run["tokens"]] * 1e12) / (run["ms"] * 1e-3)


def table(r):
    """Rows: measure, incumbent, must, aim, measured."""
    runs = {(run["tokens"], run["recompute"]): run for run in r["runs"]}
    small, small_again = runs[512, False], runs[512, True]
    large, large_again = runs[8192, False], runs[8192, True]
    gdn, conv, frozen = (r["operators"].get(name, {}) for name in ("gdn", "conv", "conv (frozen)"))

    def at(line, *names):
        return f"{sum(line[name] for name in names):.2f}" if line else "not served"

    def step(run):
        return f"{run['ms']:.1f} at {run['peak_gib']:.2f} GiB"

    firsts = [run["first_over_median"] for run in r["runs"]]
    starts = [run["start_s"] for run in r["runs"]]
    return [
        ("512 tokens/step, ms (GEMM floor 14); recompute off / on", "384 / 496", "40", "22",
         f"{small['ms']:.1f} / {small_again['ms']:.1f}"),
        ("512 tokens/step, peak GiB; recompute off / on", "14.7 / 9.9", "11", "10",
         f"{small['peak_gib']:.2f} / {small_again['peak_gib']:.2f} "
         f"(nvidia-smi {small['nvidia_smi_gib']:.1f} / {small_again['nvidia_smi_gib']:.1f})"),
        ("8,192 tokens/step, ms, no recompute (floor 204)", "916 at 111.8 GiB", "400", "260 at 32 GiB",
         f"{step(large)} (nvidia-smi {large['nvidia_smi_gib']:.1f})"),
        ("8,192 tokens/step, ms, recompute on (floor 291)", "1,242 at 36.2 GiB", "520", "345 at 12 GiB",
         f"{step(large_again)} (nvidia-smi {large_again['nvidia_smi_gib']:.1f})"),
        ("delta rule, 32,768 tokens, 195 samples, 32/16 heads: forward, ms",
         "fla 2.2-2.4; FlashInfer 0.43 (8 x 4,096); FlashQLA 0.62-0.88", "1.2", "0.45", at(gdn, "forward_ms")),
        ("the same, backward", "fla 5.7-6; FlashQLA 2.5-2.9", "4.0", "1.3", at(gdn, "backward_ms")),
        ("causal conv, 8,192 channels, 32,768 tokens, forward / both, ms", "0.40 / 2.9", "0.3 / 1.0", "copy speed",
         f"{at(conv, 'forward_ms')} / {at(conv, 'forward_ms', 'backward_ms')} "
         f"(frozen weights {at(frozen, 'forward_ms', 'backward_ms')})"),
        ("first step / median step", "minutes of autotuning", "3", "1.5", f"{min(firsts):.1f}-{max(firsts):.1f}"),
        ("program start to first step, s", "", "15", "6", f"{min(starts):.1f}-{max(starts):.1f}"),
        (f"GEMM share, 8,192 tokens; recompute off / on, at {r['gemm_tflops'][8192]:.0f} TFLOP/s", "0.22", "0.5", "0.8",
         f"{r['gemm_share']['off']:.2f} / {r['gemm_share']['on']:.2f}"),
    ]


def markdown(r):
    machine = r["machine"]
    clocks = [run["clock_mhz"] for run in r["runs"] if run["clock_mhz"]]
    lines = [f"{machine.get('name', 'unknown card')}, driver {machine.get('driver_version', '?')}, "
             f"memory {machine.get('clocks.max.mem', '?')} MHz, SM {min(clocks, default=0):.0f}-{max(clocks, default=0):.0f} MHz "
             f"while training (at most {machine.get('clocks.max.sm', '?')}), power limit {machine.get('power.limit', '?')} W, "
             f"{r['date']}, {r['version']}", "",
             "| measure | incumbent | must | aim | measured |", "|---|---|---|---|---|"]
    lines += [f"| {' | '.join(row)} |" for row in table(r)]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--model", type=pathlib.Path)
    parser.add_argument("--output", type=pathlib.Path)
    parser.add_argument("--steps", type=int, default=30)
    options = parser.parse_args()
    options.output = options.output or options.folder / "bench-work" / "cuda"
    bench = Bench(options)
    try:
        bench.check()
        fields = ["name", "driver_version", "clocks.max.sm", "clocks.max.mem", "power.limit", "memory.total"]
        result = {"date": datetime.date.today().isoformat(), "version": bench.call("deltune", "--version").strip(),
                  "machine": query(fields), "init_s": bench.make_model(), "parameters": PARAMETERS}
        write_rows(bench.work / "rows.jsonl", 8192 * (options.steps + 1))
        bench.warm()
        result["runs"] = []
        for tokens, recompute in ((512, False), (512, True), (8192, False), (8192, True)):
            run = bench.sft(tokens, recompute)
            result["runs"].append(run)
            print(f"{tokens} tokens, recompute {'on' if recompute else 'off'}: {run['ms']:.2f} ms "
                  f"({run['ms_low']:.2f}-{run['ms_high']:.2f}), {run['peak_gib']:.2f} GiB, first step "
                  f"{run['first_step_ms']:.0f} ms after {run['start_s']:.1f} s", flush=True)
        result["operators"] = bench.operators()
        rates = result["gemm_tflops"] = bench.gemm()
        large = [run for run in result["runs"] if run["tokens"] == 8192]
        result["gemm_share"] = {"on" if run["recompute"] else "off": gemm_share(run, rates) for run in large}
        (bench.output / "results.json").write_text(json.dumps(result, indent=1) + "\n")
        (bench.output / "table.md").write_text(markdown(result))
        print(f"\n{markdown(result)}\n{bench.output}/results.json, table.md")
    finally:
        shutil.rmtree(bench.work)


main()
