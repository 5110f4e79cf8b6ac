#!/usr/bin/env bash
# The main job from start to end at small scale, on the sample data. Every step is the command a user would type.
set -euo pipefail
build=$1
cd "$(dirname "$0")/.."
out=demo-out
PATH=$PWD/$build:$PATH
start=$SECONDS

if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then bold=$(printf '\033[1m') plain=$(printf '\033[0m'); else bold='' plain=''; fi
title() { printf '\n%s== %s%s\n' "$bold" "$*" "$plain"; }
run() { # prints the command as one would type it, then runs it
    local word line='$'
    for word in "$@"; do
        case $word in *[!a-zA-Z0-9_./=-]*) line+=" '$word'" ;; *) line+=" $word" ;; esac
    done
    printf '%s%s%s\n' "$bold" "$line" "$plain"
    "$@"
}

rm -rf "$out"
mkdir "$out"

title "1. A small model of the Qwen3.5 shape, random weights (data/sample/config.json)"
run deltune init --config data/sample/config.json --tokenizer data/sample --output_dir $out/model

title "2. Training all of its weights on a few hundred questions and answers, so that it can answer at all"
run deltune sft --model $out/model --tuner_type full --dataset data/sample/instructions.jsonl \
    --packing true --max_length 512 --gradient_accumulation_steps 1 --gradient_checkpointing false \
    --learning_rate 1e-3 --warmup_ratio 0.05 --max_steps 600 --logging_steps 50 --save_steps 600 \
    --output_dir $out/base --add_version false

title "3. The reference recipe on conversations it does not know: LoRA, bf16 weights, packed samples, 300 steps"
run deltune sft --model $out/base/checkpoint-600 --tuner_type lora --dataset data/sample/chat.jsonl \
    --torch_dtype bfloat16 --packing true --max_length 512 \
    --per_device_train_batch_size 1 --gradient_accumulation_steps 1 \
    --learning_rate 1e-3 --max_steps 300 --logging_steps 10 --save_steps 300 \
    --output_dir $out/lora --add_version false

title "4. What came out"
run ls $out/lora $out/lora/checkpoint-300
for file in checkpoint-300/adapter_model.safetensors checkpoint-300/adapter_config.json logging.jsonl images/train_loss.png; do
    [ -s $out/lora/$file ] || { echo "missing: $out/lora/$file" >&2; exit 1; }
done

title "5. Asking the model without its adapter, and with it"
run deltune infer --model $out/base/checkpoint-600 --prompt "Tell me a joke." --temperature 0
run deltune infer --adapters $out/lora/checkpoint-300 --prompt "Tell me a joke." --temperature 0
run deltune infer --adapters $out/lora/checkpoint-300 --prompt "推荐一本关于海洋的书。" --temperature 0

title "Done in $((SECONDS - start)) s"
cat <<TEXT
The loss curve is $out/lora/images/train_loss.png. To talk to it: $build/deltune infer --adapters $out/lora/checkpoint-300
TEXT
