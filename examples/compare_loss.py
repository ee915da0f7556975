#!/usr/bin/env python3
"""Compare two loss traces of train_ring.py, step by step.

    python compare_loss.py demo_out/loss.rondo.tsv demo_out/loss.cpu.tsv [--rtol 0.02]

Both runs see the same bytes and start from the same weights, but bf16 products are rounded to 8 bits and
summed in another order, and training amplifies what differs.  The tolerance therefore grows: half of it
at the first step (where only one forward pass lies between the two), all of it from step 50 on.
"""
import argparse
import pathlib
import sys


def read(path):
    return [float(line.split("\t")[1]) for line in pathlib.Path(path).read_text().splitlines() if line[0] != "#"]


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("a")
    p.add_argument("b")
    p.add_argument("--rtol", type=float, default=0.02)
    args = p.parse_args()
    a, b = read(args.a), read(args.b)
    n = min(len(a), len(b))
    if not n:
        sys.exit("an empty trace")
    worst, where = 0.0, 0
    for i, (x, y) in enumerate(zip(a, b)):
        allowed = args.rtol * min(1.0, 0.5 + i / 100)
        difference = abs(x - y) / abs(x)
        if not difference <= allowed:
            sys.exit(f"step {i + 1}: {x:.6f} and {y:.6f} differ by {difference:.2%}, allowed are {allowed:.2%}")
        if difference > worst:
            worst, where = difference, i + 1
    print(f"{n} steps agree; the largest difference is {worst:.3%} at step {where}, the tolerance {args.rtol:.0%}")


if __name__ == "__main__":
    main()
