"""The list of vLLM's models is read from its sources."""

from pathlib import Path

from tools.reference_pages.vllm_models import listed_models, read_models

REGISTRY = """
_TEXT_GENERATION_MODELS = {"LlamaForCausalLM": ("llama", "LlamaForCausalLM")}
_EMBEDDING_MODELS = {"BertModel": ("bert", "BertModel"), **_TEXT_GENERATION_MODELS}
_MULTIMODAL_MODELS = {"ZetaForConditionalGeneration": ("zeta", "Zeta")}
_TRANSFORMERS_SUPPORTED_MODELS = {"ArceeForCausalLM": ("transformers", "T")}
"""


def test_models_are_read_from_the_registry_without_importing_it(tmp_path: Path) -> None:
    (tmp_path / "model_executor/models").mkdir(parents=True)
    (tmp_path / "model_executor/models/registry.py").write_text(f"raise SystemExit\n{REGISTRY}")
    (tmp_path / "_version.py").write_text("__version__ = version = '1.2.3'\n")
    assert read_models(tmp_path) == {
        "version": "1.2.3",
        "classes": ["ArceeForCausalLM", "LlamaForCausalLM", "ZetaForConditionalGeneration"],
    }


def test_the_committed_list_has_the_families_that_everyone_serves() -> None:
    assert {"LlamaForCausalLM", "Qwen3ForCausalLM"} <= set(listed_models()["classes"])
