"""Which files are chosen, as tables: what the repository has, what was asked for, what comes out."""

from typing import Any

import msgspec
import pytest

from llmgwd.domain.errors import LlmgwError
from llmgwd.domain.files import RepoFile
from llmgwd.weights.choice import choose, entry_file, projector_file
from llmgwd.weights.gguf_sets import missing_shards, quantisation_of

GIB = 1 << 30


def listing(*paths: str) -> list[RepoFile]:
    return [RepoFile(path, (number + 1) * GIB) for number, path in enumerate(paths)]


def chosen(paths: list[str], contents: dict[str, Any] | None = None, **asked: Any) -> list[str]:
    """contents: of those that are read, by path and before they are JSON; the others are empty."""

    def read(file: RepoFile) -> bytes:
        return msgspec.json.encode((contents or {}).get(file.path, {}))

    return [file.path for file in choose(listing(*paths), read, **asked)]


Q4, Q5, Q8 = "m-Q4_K_M.gguf", "m-Q5_K_M.gguf", "m-q8_0.gguf"
SPLIT = [f"Q6_K/m-Q6_K-0000{n}-of-00003.gguf" for n in (1, 2, 3)]
MANY = ["README.md", ".gitattributes", "config.json", "imatrix.gguf", Q4, Q5, Q8, *SPLIT]
VISION = [Q4, Q8, "mmproj-BF16.gguf", "mmproj-F16.gguf", "mmproj-F32.gguf"]


@pytest.mark.parametrize(
    ("there", "asked", "expected"),
    [
        pytest.param(MANY, {}, [Q4], id="new-model-q4-k-m"),
        pytest.param([Q5, Q8], {}, [Q8], id="new-model-q8-0-without-q4"),
        pytest.param(["README.md", Q5], {}, [Q5], id="new-model-the-only-one"),
        pytest.param(["m.gguf"], {}, ["m.gguf"], id="the-only-one-of-no-known-quantisation"),
        pytest.param(MANY, {"quant": "q6_k"}, SPLIT, id="quant-is-all-shards-any-case"),
        pytest.param(MANY, {"file": "*-Q5*"}, [Q5], id="file-glob-of-the-name"),
        pytest.param(MANY, {"file": SPLIT[1]}, SPLIT, id="file-of-one-shard-is-its-set"),
        pytest.param(MANY, {"file": "Q6_K/*"}, SPLIT, id="file-glob-of-the-path"),
        pytest.param(MANY, {"like": [Q8]}, [Q8], id="as-stable"),
        pytest.param(MANY, {"like": SPLIT}, SPLIT, id="as-stable-split"),
        pytest.param(MANY, {"like": ["old-name.Q5_K_M.gguf"]}, [Q5], id="as-stable-under-another-name"),
        pytest.param(
            ["a-Q4_K_M.gguf", "b-Q4_K_M.gguf"], {"like": ["b-Q4_K_M.gguf"]}, ["b-Q4_K_M.gguf"], id="same-name"
        ),
        pytest.param(["x.gguf", "y.gguf"], {"like": ["y.gguf"]}, ["y.gguf"], id="as-stable-of-no-known-quantisation"),
        pytest.param(
            ["m-UD-Q4_K_XL.gguf", Q4], {"quant": "Q4_K_XL"}, ["m-UD-Q4_K_XL.gguf"], id="dynamic-by-short-name"
        ),
        pytest.param(VISION, {}, [Q4, "mmproj-F16.gguf"], id="projector-f16-first"),
        pytest.param(VISION, {"like": [Q8, "mmproj-F32.gguf"]}, [Q8, "mmproj-F32.gguf"], id="projector-as-stable"),
        pytest.param(VISION, {"file": "m*[Q-]*[M2].gguf"}, [Q4, "mmproj-F32.gguf"], id="projector-by-glob"),
        *(
            pytest.param(
                [f"a-{size}-Q4_K_M.gguf" for size in ("12B", "4B")]
                + [f"mmproj-a-{size}-{label}.gguf" for size in ("12B", "4B") for label in ("f32", "f16")],
                {"file": f"a-{size}-*"},
                [f"a-{size}-Q4_K_M.gguf", f"mmproj-a-{size}-f16.gguf"],
                id=f"projector-named-like-the-{size}-model",
            )
            for size in ("12B", "4B")
        ),
        pytest.param(
            ["12B/a-Q4_K_M.gguf", "12B/mmproj-f16.gguf", "4B/a-Q4_K_M.gguf", "4B/mmproj-f16.gguf"],
            {"file": "4B/a*"},
            ["4B/a-Q4_K_M.gguf", "4B/mmproj-f16.gguf"],
            id="projector-of-the-same-folder",
        ),
        pytest.param(
            [Q4, "mmproj-F16-00001-of-00002.gguf", "mmproj-F16-00002-of-00002.gguf"],
            {},
            [Q4, "mmproj-F16-00001-of-00002.gguf", "mmproj-F16-00002-of-00002.gguf"],
            id="projector-with-all-its-shards",
        ),
        pytest.param([Q4, "m-lora.gguf"], {}, [Q4], id="no-adapter"),
        pytest.param([Q4, "m-lora.gguf"], {"file": "*lora*"}, ["m-lora.gguf"], id="named-like-an-adapter-by-glob"),
        pytest.param(
            [Q4, "m-lora-Q8_0.gguf"],
            {"like": ["m-lora-Q8_0.gguf"]},
            ["m-lora-Q8_0.gguf"],
            id="named-like-an-adapter-as-stable",
        ),
        pytest.param(
            ["m-imatrix.gguf", "m-Q5_K_M-imatrix.gguf"], {}, ["m-Q5_K_M-imatrix.gguf"], id="quantised-with-a-matrix"
        ),
        pytest.param(MANY, {"like": ["own.gguf"], "like_quant": "Q5_K_M"}, [Q5], id="as-stable-by-its-header"),
        pytest.param(MANY, {"like": [Q8], "like_quant": "Q5_K_M"}, [Q8], id="as-stable-by-its-name-first"),
    ],
)
def test_gguf_choice(there: list[str], asked: dict[str, Any], expected: list[str]) -> None:
    assert chosen(there, **asked) == expected


SMALL = ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"]
ONE = ["model.safetensors"]
SHARDS = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json"]
MAPPED = {"config.json": {"auto_map": {"AutoModel": "modeling_x.XModel"}}}
MODULES = {"modules.json": [{"path": path} for path in ("", "1_Pooling", "2_Dense", "router")]}
INDEX = {SHARDS[2]: {"weight_map": {"a": SHARDS[0], "b": SHARDS[1], "c": SHARDS[1]}}}
BIN_INDEX = "pytorch_model.bin.index.json"
BESIDE = [
    "README.md",
    "LICENSE.txt",
    "pytorch_model.bin",
    BIN_INDEX,
    "original/a.pth",
    "onnx/m.onnx",
]


@pytest.mark.parametrize(
    ("there", "asked", "expected"),
    [
        pytest.param([*SMALL, *ONE, *BESIDE], {}, [*SMALL, *ONE], id="no-duplicates"),
        pytest.param([*SMALL, *SHARDS, *BESIDE], {"contents": INDEX}, [*SMALL, *SHARDS], id="shards-with-their-index"),
        pytest.param(
            [*SMALL, *SHARDS, "consolidated.safetensors", "model-00001-of-00003.safetensors", *ONE, "mtp.safetensors"],
            {"contents": INDEX},
            [*SMALL, *SHARDS],
            id="only-what-the-index-names",
        ),
        pytest.param(
            [*SMALL, *SHARDS, "consolidated.safetensors"],
            {"contents": INDEX, "file": "*.safetensors"},
            [*SMALL, *SHARDS],
            id="only-what-the-index-names-of-a-glob",
        ),
        pytest.param(
            [*SMALL, *SHARDS], {"contents": INDEX, "file": SHARDS[0]}, [*SMALL, *SHARDS], id="glob-of-one-shard"
        ),
        pytest.param(
            [*SMALL, *SHARDS, "mtp.safetensors"],
            {"contents": INDEX, "file": "mtp*"},
            [*SMALL, "mtp.safetensors"],
            id="glob-of-what-no-index-names",
        ),
        pytest.param(
            [*SMALL, *ONE, SHARDS[2]], {"contents": INDEX}, [*SMALL, *ONE], id="index-of-shards-that-were-merged"
        ),
        pytest.param([*SMALL, *SHARDS[:2]], {}, [*SMALL, *SHARDS[:2]], id="shards-that-nobody-indexed"),
        pytest.param(
            [
                *SMALL,
                *ONE,
                "model.fp16.safetensors",
                "model.safetensors.index.fp16.json",
                "m.bf16-00001-of-2.safetensors",
            ],
            {},
            [*SMALL, *ONE],
            id="no-variants",
        ),
        pytest.param(["Qwen2.5-7B.safetensors"], {}, None, id="a-dot-makes-no-variant"),
        pytest.param(["config.json", "model.fp16.safetensors"], {}, None, id="the-only-variant"),
        pytest.param(
            [*ONE, "model.fp16.safetensors"], {"file": "*fp16*"}, ["model.fp16.safetensors"], id="variant-by-glob"
        ),
        pytest.param(
            [*ONE, "model.fp16.safetensors"],
            {"like": ["model.fp16.safetensors"]},
            ["model.fp16.safetensors"],
            id="variant-as-stable",
        ),
        pytest.param(
            ["pytorch_model.bin", "pytorch_model-00001-of-00001.bin", BIN_INDEX, "model.pt", "consolidated.00.pth"],
            {
                "contents": {BIN_INDEX: {"weight_map": {"a": "pytorch_model-00001-of-00001.bin"}}},
                "allow_unsafe": True,
            },
            ["pytorch_model-00001-of-00001.bin", BIN_INDEX],
            id="one-kind-of-pickles",
        ),
        pytest.param([*SMALL, *ONE, "consolidated.safetensors"], {}, [*SMALL, *ONE], id="no-second-format"),
        pytest.param(["params.json", "consolidated.safetensors"], {}, None, id="second-format-alone"),
        pytest.param([*SMALL, *ONE, Q4], {"like": ONE}, [*SMALL, *ONE], id="as-stable-beside-gguf"),
        pytest.param([*SMALL, *ONE, Q4], {}, [Q4], id="new-model-takes-gguf"),
        pytest.param([*SMALL, *ONE, Q4], {"file": "*.safetensors"}, [*SMALL, *ONE], id="safetensors-by-glob"),
        pytest.param(
            [
                *ONE,
                "modules.json",
                "1_Pooling/config.json",
                *("2_Dense/config.json", "2_Dense/model.safetensors"),
                "router/query_0/model.safetensors",
            ],
            {"contents": MODULES},
            None,
            id="embedding-model",
        ),
        pytest.param(
            [
                "modules.json",
                "2_Dense/config.json",
                "2_Dense/model.safetensors",
                "2_Dense/model.pt",
                "3_X/x.json",
            ],
            {"contents": MODULES},
            ["modules.json", "2_Dense/config.json", "2_Dense/model.safetensors"],
            id="modules-alone-and-their-duplicates",
        ),
        pytest.param([*SMALL, *ONE, Q4], {"prefers_folder": True}, [*SMALL, *ONE], id="safetensors-by-engine"),
        pytest.param([*SMALL, Q4], {"prefers_folder": True}, [Q4], id="no-safetensors-for-that-engine"),
        pytest.param([*SMALL, *ONE, Q4], {"prefers_folder": True, "quant": "Q4_K_M"}, [Q4], id="quant-is-said"),
        pytest.param(["config.json", "pytorch_model.bin"], {"allow_unsafe": True}, None, id="pickle-if-trusted"),
        pytest.param(
            [*ONE, "config.json", "modeling_x.py", "rope.py"],
            {"allow_unsafe": True, "contents": MAPPED},
            None,
            id="code-if-trusted",
        ),
        pytest.param(
            [*ONE, "config.json", "inference.py", "modeling_x.py"],
            {"contents": {"config.json": {"architectures": ["XModel"], "torch": "torch.BFloat16"}}},
            [*ONE, "config.json"],
            id="no-code-that-nothing-loads",
        ),
        pytest.param(
            ["config.json", "pytorch_model.bin", Q4],
            {"like": ["config.json", "pytorch_model.bin"], "allow_unsafe": True},
            ["config.json", "pytorch_model.bin"],
            id="pickle-as-stable-beside-gguf",
        ),
    ],
)
def test_folder_choice(there: list[str], asked: dict[str, Any], expected: list[str] | None) -> None:
    """expected None: everything."""
    assert chosen(there, **asked) == sorted(there if expected is None else expected)


@pytest.mark.parametrize(
    ("there", "asked", "message"),
    [
        pytest.param(
            [Q5, "m-Q6_K.gguf"],
            {},
            "there are several models to choose from: m-Q5_K_M: Q5_K_M (1.0 GiB), m-Q6_K: Q6_K (2.0 GiB)",
            id="several-left",
        ),
        pytest.param(
            ["a-Q4_K_M.gguf", "b-Q4_K_M.gguf"],
            {"quant": "Q4_K_M"},
            "there are several models to choose from: a-Q4_K_M: Q4_K_M (1.0 GiB), b-Q4_K_M: Q4_K_M (2.0 GiB)",
            id="several-of-that-quantisation",
        ),
        pytest.param(
            [Q4, Q8],
            {"quant": "Q3_K_S"},
            "there is no quantisation Q3_K_S; there is: Q4_K_M (1.0 GiB), Q8_0 (2.0 GiB)",
            id="no-such-quantisation",
        ),
        pytest.param(
            [Q8],
            {"like": [Q4]},
            "this revision has no Q4_K_M, which stable is served from; there is: Q8_0 (1.0 GiB)",
            id="stable-quantisation-gone",
        ),
        pytest.param(
            [Q4, SPLIT[0], SPLIT[2]],
            {"quant": "Q6_K"},
            "Q6_K lacks Q6_K/m-Q6_K-00002-of-00003.gguf; there is: Q4_K_M (1.0 GiB)",
            id="shard-missing",
        ),
        pytest.param(
            ["m-00001-of-99999.gguf"],
            {},
            "m lacks m-00002-of-99999.gguf, m-00003-of-99999.gguf, m-00004-of-99999.gguf and 99995 more",
            id="absurdly-many-shards-missing",
        ),
        pytest.param(
            [Q4], {"file": "*.bin"}, "*.bin matches no file; there is: Q4_K_M (1.0 GiB)", id="glob-of-nothing"
        ),
        pytest.param(
            VISION,
            {"file": "mmproj*"},
            "mmproj* matches no model, only a projector; there is: Q4_K_M (1.0 GiB), Q8_0 (2.0 GiB)",
            id="only-a-projector",
        ),
        pytest.param(
            ["config.json", "model-00001-of-00002.safetensors"],
            {},
            "the weights are not complete: model-00002-of-00002.safetensors missing",
            id="safetensors-shard-missing",
        ),
        pytest.param(
            ["pytorch_model.bin"],
            {},
            "pytorch_model.bin: weights in this format run code when they are loaded",
            id="pickle",
        ),
        pytest.param(
            [*SHARDS[:1], *SHARDS[2:]],
            {"contents": INDEX},
            "the weights are not complete: model-00002-of-00002.safetensors missing, of model.safetensors.index.json",
            id="shard-of-the-index-missing",
        ),
        pytest.param(SHARDS, {}, "model.safetensors.index.json is no index of weights", id="index-that-names-nothing"),
        pytest.param(
            ["model.bf16.safetensors", "model.fp16.safetensors"],
            {},
            "there are several variants of the weights to choose from: model.bf16.safetensors, model.fp16.safetensors",
            id="several-variants",
        ),
        pytest.param(
            [*ONE, "modules.json", "2_Dense/pytorch_model.bin"],
            {"contents": MODULES},
            "2_Dense/pytorch_model.bin: weights in this format run code when they are loaded",
            id="pickle-of-a-module",
        ),
        *(
            pytest.param(
                [*ONE, setting, "rope.py", "custom_st.py", "2_Dense/own.py", *modules],
                {"contents": {setting: content, **(MODULES if modules else {})}},
                f"the repository brings code that is run to load it: {names}",
                id=f"code-of-{names}",
            )
            for setting, content, names, modules in (
                ("config.json", MAPPED["config.json"], "modeling_x.py", []),
                (
                    "config.json",
                    {"auto_map": {"AutoModel": "org/up--modeling_x.XModel"}},
                    "modeling_x.py of org/up",
                    [],
                ),
                ("config.json", {"custom_pipelines": {"own": {"impl": "rope.Pipeline"}}}, "rope.py", []),
                ("tokenizer_config.json", {"auto_map": {"AutoTokenizer": ["tokens.Slow", None]}}, "tokens.py", []),
                ("modules.json", [{"path": "", "type": "custom_st.Transformer"}], "custom_st.py", []),
                ("2_Dense/config.json", {"activation": "own.Gelu"}, "2_Dense/own.py", ["modules.json"]),
            )
        ),
        pytest.param(
            [Q4, "mmproj-x-F16.gguf", "mmproj-y-F16.gguf"],
            {},
            "m-Q4_K_M has several projectors: mmproj-x-F16.gguf, mmproj-y-F16.gguf",
            id="several-projectors-left",
        ),
        pytest.param(
            [Q4, "mmproj-F16-00001-of-00002.gguf"],
            {},
            "F16 lacks mmproj-F16-00002-of-00002.gguf",
            id="projector-shard-missing",
        ),
        pytest.param(["README.md"], {}, "the repository has no weights that can be served", id="no-weights"),
        pytest.param(
            ["m-lora.gguf"],
            {},
            "the repository has no weights that can be served, only what is named like an adapter or an importance"
            " matrix: m-lora.gguf",
            id="only-what-is-named-like-an-adapter",
        ),
    ],
)
def test_refused_choice(there: list[str], asked: dict[str, Any], message: str) -> None:
    with pytest.raises(LlmgwError) as refusal:
        chosen(there, **asked)
    assert refusal.value.message == message
    assert refusal.value.hint
    assert ("--allow-unsafe" in refusal.value.hint) == (refusal.value.code == "weights_unsafe")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("Qwen3-8B-Q4_K_M.gguf", "Q4_K_M"),
        ("qwen2.5-7b-instruct-q4_k_m-00001-of-00002.gguf", "Q4_K_M"),
        ("model.IQ4_XS.gguf", "IQ4_XS"),
        ("gpt-oss-20b-MXFP4.gguf", "MXFP4"),
        ("BF16/m-BF16-00001-of-00002.gguf", "BF16"),
        ("UD-Q4_K_XL/m-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
        ("Q8_0/model.gguf", "Q8_0"),
        ("llama-fp16.gguf", "F16"),
        ("m.i1-Q2_K_S.gguf", "Q2_K_S"),
        ("phi_2_q4_k_m_imat.gguf", "Q4_K_M"),
        ("Llama-3.1-8B-Q4_0_4_4.gguf", "Q4_0_4_4"),
        ("m-IQ2_XXS.gguf", "IQ2_XXS"),
        ("m-IQ4_NL.gguf", "IQ4_NL"),
        ("m-Q2_K.gguf", "Q2_K"),
        ("Qwen3.gguf", None),
    ],
)
def test_quantisation_by_name(path: str, expected: str | None) -> None:
    assert quantisation_of(path) == expected


@pytest.mark.parametrize(
    ("paths", "entry", "projector"),
    [
        ([Q4], Q4, None),
        (list(reversed(SPLIT)), SPLIT[0], None),
        (["mmproj-F16.gguf", Q4], Q4, "mmproj-F16.gguf"),
        (["config.json", "model.safetensors"], None, None),
    ],
)
def test_what_an_engine_is_given(paths: list[str], entry: str | None, projector: str | None) -> None:
    assert (entry_file(paths), projector_file(paths)) == (entry, projector)


def test_missing_shards_are_counted_without_being_listed() -> None:
    missing = missing_shards(listing("m-00001-of-99999.gguf", "m-00003-of-99999.gguf", "n-00002-of-00002.bin"))
    assert missing.count == 99998
    assert missing.paths == tuple(f"m-0000{index}-of-99999.gguf" for index in (2, 4, 5))


@pytest.mark.parametrize("asked", [{"quant": "Q4_K_M"}, {"file": "*.gguf"}], ids=["quant", "file"])
def test_a_miss_where_there_is_nothing_to_choose_says_to_choose_nothing(asked: dict[str, Any]) -> None:
    with pytest.raises(LlmgwError) as refusal:
        chosen(["config.json", "model.safetensors"], **asked)
    assert "leave out --file and --quant" in refusal.value.hint
