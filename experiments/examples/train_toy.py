"""Gradient descent on a sine with random features: plain Python, a second at most, the same numbers everywhere."""

import argparse
import math
import random

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--width", type=int, default=64, help="number of features")
parser.add_argument("--steps", type=int, default=10, help="number of steps")
options = parser.parse_args()

draw = random.Random(1)
features = [(draw.gauss(0, 3), draw.uniform(0, 2 * math.pi)) for _ in range(options.width)]
points = [i / 16 - 1 for i in range(33)]
rows = [[math.cos(slope * x + shift) for slope, shift in features] for x in points]
weights = [0.0] * options.width
for step in range(1, options.steps + 1):
    errors = [
        sum(w * f for w, f in zip(weights, row, strict=True)) - math.sin(3 * x)
        for row, x in zip(rows, points, strict=True)
    ]
    loss = sum(error * error for error in errors) / len(points)
    print(f"step={step} loss={loss:.6f}", flush=True)
    for i in range(options.width):
        slope = sum(error * row[i] for error, row in zip(errors, rows, strict=True)) / len(points)
        weights[i] -= 0.02 * slope
