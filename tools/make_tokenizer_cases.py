#!/usr/bin/env python3
"""Writes tests/data/text/tokenizer_cases.jsonl: texts with the ids and the decoded text of the `tokenizers` package.

    python3 tools/make_tokenizer_cases.py

With the sample tokenizer, and with the same one under Qwen3's older pattern (`plain_ids`, where they differ).
"""
import json
import pathlib
import random

from tokenizers import Tokenizer

ROOT = pathlib.Path(__file__).resolve().parent.parent
source = (ROOT / "data" / "sample" / "tokenizer.json").read_text(encoding="utf-8")
plain = source.replace(r"?[\\p{L}\\p{M}]+|", r"?\\p{L}+|").replace(r"[^\\s\\p{L}\\p{M}\\p{N}]+", r"[^\\s\\p{L}\\p{N}]+")
assert plain != source
MARKS, PLAIN = Tokenizer.from_str(source), Tokenizer.from_str(plain)


def texts():
    hand = [
        "", "a", " ", "  ", "\n", "\r\n", "\t", "Hello, world! 12345", "  spaced  text\n", "   hello", "hello \n  world",
        "'s 'S 're 'RE 'll 'D", "isn't I'M they'VE 'ſ 'ſa 'sa", "é e\u0301", "你好，世界！", "介绍一下你自己",
        "مَرْحَبًا दुनिया", "123٤٥Ⅻ½²", "foo... \r\nbar", "a\u00a0\u2003\u0085b", "rock’n’roll", "\n\n  \ntext\t\tend  ",
        "Café — κόσμος 🚀", "<think>x</think>", "<|im_start|>user\nhi<|im_end|>\n", "<|im_start|><|im_end|><|endoftext|>",
        "<|im_start|im_end|>", "<<|im_end|>>", "<|im_end|>\u0338", "<think", "</think></think>", "\u0301", "a\u0301\u0316",
        "\u1100\u1161\u11a8", "\uac00\u11a8", "\uac00\u11a7", "\u0f71\u0f72\u0f74", "\U0001d158\U0001d165", "\ufb1d\u05b7",
        "\u212b\u2126", "👩‍👩‍👧‍👦 👍🏽 🇫🇷", "\u200b\ufeff\ufffd", "\U0010ffff\ue000", "x = {'a': [1, 2.5]}  # ok",
        "https://a.b/c?d=e&f=%20", "ＡＢＣ１２３", "a\x00b", " " * 1000, "a" * 500, "ab " * 100, "\u0301\u0316" * 200,
        "\n \r\t" * 50, "1" * 60, "!?" * 60, "的" * 120, "中文和English混合123，对吗？Yes！",
    ]
    yield from hand
    rnd = random.Random(20)
    blocks = [(0, 0x80)] * 4 + [(0x80, 0x300), (0x300, 0x370), (0x370, 0x600), (0x600, 0x1000), (0x1000, 0x1200),
              (0x1E00, 0x2100), (0x2100, 0x3000), (0x3000, 0x3100), (0x4E00, 0x9FFF), (0xAC00, 0xD7A4), (0xF900, 0x10000),
              (0x1D100, 0x1D200), (0x1F300, 0x1FA00), (0, 0x20000)]
    for _ in range(150):
        out = []
        for _ in range(rnd.randint(1, 24)):
            c = rnd.randrange(*rnd.choice(blocks))
            out.append(chr(c) * rnd.choice((1, 1, 1, 2)) if not 0xD800 <= c < 0xE000 else "'s ")
        yield "".join(out)


lines = []
for text in texts():
    ids, old = MARKS.encode(text).ids, PLAIN.encode(text).ids
    row = {"text": text, "ids": ids, "decoded": MARKS.decode(ids, skip_special_tokens=False),
           "skipped": MARKS.decode(ids, skip_special_tokens=True)}
    if old != ids:
        row["plain_ids"] = old
    if row["skipped"] == row["decoded"]:
        del row["skipped"]
    lines.append(json.dumps(row, ensure_ascii=True))
(ROOT / "tests" / "data" / "text" / "tokenizer_cases.jsonl").write_text("\n".join(lines) + "\n")
