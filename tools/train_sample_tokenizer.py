#!/usr/bin/env python3
"""Trains the sample tokenizer on the sample rows: data/sample/tokenizer.json and tokenizer_config.json.

    python3 tools/train_sample_tokenizer.py

4,096 entries: the 256 bytes, merges, and at the end the 33 added tokens of Qwen3.5 in their order. Normaliser, split
pattern and byte alphabet are those of Qwen3.5. The same rows give the same files. Needs `tokenizers`.
"""
import json
import pathlib

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

SIZE = 4096
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
ADDED = """<|endoftext|> <|im_start|> <|im_end|> <|object_ref_start|> <|object_ref_end|> <|box_start|> <|box_end|>
<|quad_start|> <|quad_end|> <|vision_start|> <|vision_end|> <|vision_pad|> <|image_pad|> <|video_pad|> <tool_call>
</tool_call> <|fim_prefix|> <|fim_middle|> <|fim_suffix|> <|fim_pad|> <|repo_name|> <|file_sep|> <tool_response>
</tool_response> <think> </think> <|audio_start|> <|audio_end|> <tts_pad> <tts_text_bos> <tts_text_eod>
<tts_text_bos_single> <|audio_pad|>""".split()
NOT_SPECIAL = set(ADDED[ADDED.index("<tool_call>") : ADDED.index("</think>") + 1])

folder = pathlib.Path(__file__).resolve().parent.parent / "data" / "sample"


def strings(value):
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from strings(item)
    elif isinstance(value, dict):
        for item in value.values():  # the roles too: they stand in every rendered turn
            yield from strings(item)


def rows():
    for name in ("instructions.jsonl", "chat.jsonl"):
        for line in (folder / name).read_text(encoding="utf-8").splitlines():
            yield from strings(json.loads(line))
            yield "\n\n"  # stands around every think block


tokenizer = Tokenizer(models.BPE())
tokenizer.normalizer = normalizers.NFC()
tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
    [
        pre_tokenizers.Split(Regex(PATTERN), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False),
    ]
)
tokenizer.decoder = decoders.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
trainer = trainers.BpeTrainer(
    vocab_size=SIZE - len(ADDED),
    min_frequency=1,
    initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    show_progress=False,
)
tokenizer.train_from_iterator(rows(), trainer)
assert tokenizer.get_vocab_size() == SIZE - len(ADDED), tokenizer.get_vocab_size()
tokenizer.add_tokens([AddedToken(t, normalized=False, special=t not in NOT_SPECIAL) for t in ADDED])
assert tokenizer.get_vocab_size() == SIZE

data = json.loads(tokenizer.to_str())
data["model"]["merges"] = [" ".join(pair) for pair in data["model"]["merges"]]  # one line each
data["added_tokens"] = [dict(t, special=t["content"] not in NOT_SPECIAL) for t in data["added_tokens"]]
(folder / "tokenizer.json").write_text(json.dumps(data, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
config = {
    "added_tokens_decoder": {str(t.pop("id")): t for t in data["added_tokens"]},
    "clean_up_tokenization_spaces": False,
    "eos_token": "<|im_end|>",
    "pad_token": "<|endoftext|>",
    "tokenizer_class": "PreTrainedTokenizerFast",
}
text = json.dumps(config, ensure_ascii=False, indent=1)
(folder / "tokenizer_config.json").write_text(text + "\n", encoding="utf-8")
