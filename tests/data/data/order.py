#!/usr/bin/env python3
"""Writes order.json and packing.json: the order of data as numpy and torch give it, and packs by the plain definition.

An independent statement of the rules in docs/data-formats.md ("Order", "Packing"): it draws every random number with
numpy and torch, and packs with the O(items x bins) definition; where the package binpacking is importable it is
compared with that as well (1.5 packs like "fullest", 2.0 like "emptiest").
Written with numpy 2.4.6, torch 2.13.0, checked with binpacking 1.5.2 and 2.0.1. Run: python3 order.py
"""
import json
import math
import os
import zlib

import numpy as np
import torch

HERE = os.path.dirname(os.path.abspath(__file__))


def crc(values):
    return zlib.crc32(np.asarray(values, dtype=np.uint32).tobytes())


# ---- Sampling, split, shuffle ----

def draw_seed(R):
    return int(R.randint(0, 2**31 - 1))


def sample(rows, n, shuffle, R):
    if n is None:
        return rows
    out = list(rows) * (n // len(rows))
    rest = n % len(rows)
    if rest:
        out += [rows[i] for i in (R.permutation(len(rows))[:rest] if shuffle else range(rest))]
    return out


def order(sets, ratio, shuffle, seed):
    """sets: [(rows, N or None)] -> global row numbers of the training and the validation part."""
    R, base, train, val = np.random.RandomState(seed), 0, [], []
    for size, n in sets:
        rows = list(range(base, base + size))
        base += size
        wanted = size if n is None else n
        if ratio == 0:
            train += sample(rows, wanted, shuffle, R)
        elif ratio == 1:
            val += sample(rows, wanted, shuffle, R)
        else:
            n_val = max(int(min(size, wanted) * ratio), 1)
            s = draw_seed(R)
            if shuffle:
                perm = np.random.default_rng(s).permutation(size)
                held, pool = [rows[i] for i in perm[:n_val]], [rows[i] for i in perm[n_val:]]
            else:
                held, pool = rows[size - n_val:], rows[:size - n_val]
            val += held
            train += sample(pool, wanted - n_val, shuffle, R)
    for part in (train, val):
        if shuffle and part:
            perm = np.random.default_rng(draw_seed(R)).permutation(len(part))
            part[:] = [part[i] for i in perm]
    return train, val


def order_cases():
    for sets, ratio, shuffle, seed in [
        ([(10, None)], 0, True, 42), ([(10, None)], 0, False, 42), ([(10, 4)], 0, True, 42), ([(10, 25)], 0, True, 42),
        ([(10, 20)], 0, True, 7), ([(10, 25)], 0, False, 42), ([(10, None)], 0.2, True, 42), ([(10, None)], 0.2, False, 42),
        ([(10, None)], 0.01, True, 42), ([(10, 6)], 0.5, True, 42), ([(10, 30)], 0.25, True, 1), ([(10, None)], 1, True, 42),
        ([(10, 5)], 1, True, 42), ([(10, 5)], 1, False, 42), ([(1, None)], 0, True, 42), ([(2, None)], 0.5, True, 0),
        ([(7, 3), (5, None), (6, 20)], 0, True, 42), ([(7, 3), (5, None), (6, 20)], 0, False, 42),
        ([(7, 3), (5, None), (6, 20)], 0.3, True, 42), ([(7, 3), (5, None), (6, 20)], 0.3, False, 42),
        ([(12, 5), (9, 4)], 1, True, 3),
        ([(48818, None)], 0, True, 42), ([(48818, None)], 0.01, True, 42), ([(5000, 500), (3000, 7000)], 0.1, True, 4294967295),
    ]:
        train, val = order(sets, ratio, shuffle, seed)
        case = {"sets": [[a, -1 if b is None else b] for a, b in sets], "ratio": ratio, "shuffle": shuffle, "seed": seed,
                "n_train": len(train), "n_val": len(val), "train_crc": crc(train), "val_crc": crc(val)}
        if len(train) + len(val) < 60:
            case.update(train=[int(x) for x in train], val=[int(x) for x in val])
        yield case


# ---- Packing ----

def to_constant_volume(items, room, emptiest):
    items = sorted(items, key=lambda item: -item[1])  # stable
    bins, sums = [[]], [0]
    for k, item in enumerate(items):
        fits = [b for b in range(len(bins)) if sums[b] + item[1] <= room]
        if fits:
            best = (min if emptiest else max)(sums[b] for b in fits)
            b = next(b for b in fits if sums[b] == best)
        elif k > 0:
            b = len(bins)
            bins.append([])
            sums.append(0)
        else:
            b = 0
        bins[b].append(item)
        sums[b] += item[1]
    return bins


def pack_windows(items, room, emptiest):
    packs, carry = [], []
    for first in range(0, len(items), 1000):
        bins = to_constant_volume(carry + items[first:first + 1000], room, emptiest)
        check_binpacking(carry + items[first:first + 1000], room, emptiest, bins)
        if first + 1000 < len(items):
            carry = bins.pop()
        packs += bins
    return packs


def pack_sequential(items, room):
    packs, current, total = [], [], 0
    for item in items:
        if current and total + item[1] > room:
            packs.append(current)
            current, total = [], 0
        current.append(item)
        total += item[1]
        if total == room:
            packs.append(current)
            current, total = [], 0
    return packs + ([current] if current else [])


try:
    import binpacking
    HAVE = "emptiest" if "emptiest" in (open(binpacking.to_constant_volume.__code__.co_filename).read()) else "fullest"
except ImportError:
    HAVE = None


def check_binpacking(items, room, emptiest, bins):
    if HAVE == ("emptiest" if emptiest else "fullest"):
        assert binpacking.to_constant_volume(items, room, weight_pos=1) == bins


def pack(lengths, room, strategy, parts):
    items = list(enumerate(lengths))
    parts = min(parts, math.ceil(len(items) / 1000))
    cuts = [int(x) for x in np.linspace(0, len(items), parts + 1)]
    packs = []
    for a, b in zip(cuts, cuts[1:]):
        packs += pack_sequential(items[a:b], room) if strategy == "sequential" else \
            pack_windows(items[a:b], room, strategy == "emptiest")
    return [[i for i, _ in p] for p in packs]


def packing_cases():
    for n, room, low, high, seed in [
        (1, 10, 10, 10, 1), (12, 10, 1, 10, 1), (30, 16, 1, 6, 2), (999, 512, 20, 512, 3), (1000, 512, 20, 512, 4),
        (1001, 512, 20, 512, 5), (3500, 512, 20, 400, 6), (2500, 64, 33, 64, 7), (2500, 8, 1, 8, 8), (4000, 100000, 1, 40, 9),
    ]:
        lengths = [int(x) for x in np.random.RandomState(seed).randint(low, high + 1, size=n)]
        for strategy in ("fullest", "emptiest", "sequential"):
            for parts in (1, 3):
                packs = pack(lengths, room, strategy, parts)
                case = {"n": n, "room": room, "low": low, "high": high, "seed": seed, "strategy": strategy, "parts": parts,
                        "n_packs": len(packs), "member_crc": crc([i for p in packs for i in p]),
                        "size_crc": crc([len(p) for p in packs])}
                if n <= 12:
                    case.update(lengths=lengths, packs=packs)
                yield case


# ---- Epochs and ranks ----

def epoch_cases():
    for n, world, seed, epoch in [(10, 1, 42, 0), (10, 1, 42, 1), (10, 3, 42, 0), (11, 4, 7, 2), (1000, 8, 42, 5)]:
        used = n // world * world
        perm = torch.randperm(used, generator=torch.Generator().manual_seed(seed + epoch)).tolist()
        yield {"n": n, "world": world, "seed": seed, "epoch": epoch, "crc": [crc(perm[r::world]) for r in range(world)],
               **({"ranks": [perm[r::world] for r in range(world)]} if n < 20 else {})}


def write(name, value):
    with open(os.path.join(HERE, name), "w") as f:
        f.write("{\n" + ",\n".join(f' "{k}": [\n' + ",\n".join("  " + json.dumps(c) for c in v) + "\n ]" for k, v in value.items())
                + "\n}\n")


if __name__ == "__main__":
    write("order.json", {"order": list(order_cases()), "epoch": list(epoch_cases())})
    write("packing.json", {"packing": list(packing_cases())})
    print("checked with binpacking:", HAVE)
