import random

from bench.verdict_adapter import Product

LIMITS = {"error_pp": 0.01, "ttft_ratio": 1.2, "tps_ratio": 0.8}


def fed(product: Product, rng: random.Random, *, until_s: float, bad: float = 0.0, slower: float = 1.0) -> str:
    said, at_s = "continue", 0.0
    while at_s < until_s and said == "continue":
        for _ in range(25):
            canary = rng.random() < 0.1
            ok = not (canary and rng.random() < bad)
            ttft_s = 0.4 * rng.lognormvariate(0, 1) * (slower if canary else 1.0)
            took_s = ttft_s + 100 / 40 if ok else 0.2
            side = "canary" if canary else "stable"
            product.observe(side, at_s + took_s, ok, ttft_s if ok else None, took_s, 101 if ok else 0)
        at_s += 30.0
        said = product.look(at_s)
    return said


def test_the_adapter_says_what_the_judge_decides() -> None:
    down = Product(0.1, 0.05, LIMITS)
    assert fed(down, random.Random(1), until_s=600, bad=1.0) == "rollback"
    assert "canary answers were bad" in down.explain().sentence
    assert fed(Product(0.1, 0.05, LIMITS), random.Random(1), until_s=7200, slower=3.0) == "rollback"
    assert fed(Product(0.1, 0.05, LIMITS), random.Random(1), until_s=86400) == "promote"


def test_a_promotion_waits_for_half_an_hour() -> None:
    product = Product(0.1, 0.05, LIMITS)
    fed(product, random.Random(1), until_s=86400)
    assert product.look(1700.0) == "continue"
