"""Shape of a small model that is trained from scratch."""

from typing import Final, Self

from pydantic import Field, model_validator

from qguide.training.options import JobOptions

OFFSETS: Final = (1, 2, 3)
"""Distances, in tokens, at which the heads of the first layer look back."""

ROPE_THETA = 10_000.0


class Architecture(JobOptions):
    """Shape of a Llama and of its tokenizer.

    Attributes:
        vocab_size: most tokens of the tokenizer, which is trained on the trajectories.
        hidden_size: width of the residual stream; a multiple of twice `heads`.
        intermediate_size: width of each layer's MLP.
        layers: number of layers.
        heads: number of attention heads in each layer.
        context: most tokens of a history with its reply.
        copy_heads: number of heads in each layer that start as copying heads.
        induction_heads: number of heads in the second layer that start as induction heads, beside
            the copying ones. Three heads of the first layer then look at the tokens before instead
            of copying.
        rope_theta: base of the rotary positions' wave lengths. With 10,000, few dimensions of an
            induction head still match over hundreds of tokens.
        phrases: phrases of the environment that may become one token each.
        numbered_words: names such as "cabinet 13" may become one token.
    """

    vocab_size: int = Field(default=1024, ge=300)
    hidden_size: int = Field(default=192, ge=16)
    intermediate_size: int = Field(default=512, ge=16)
    layers: int = Field(default=4, ge=1)
    heads: int = Field(default=6, ge=1)
    copy_heads: int = Field(default=0, ge=0)
    induction_heads: int = Field(default=0, ge=0)
    rope_theta: float = Field(default=ROPE_THETA, gt=1)
    context: int = Field(default=2048, ge=64)
    phrases: tuple[str, ...] = ()
    numbered_words: bool = False

    @model_validator(mode="after")
    def _cells_agree(self) -> Self:
        if self.copy_heads > self.heads:
            raise ValueError(
                f"copy_heads is {self.copy_heads} and heads {self.heads}; set copy_heads to at most {self.heads}"
            )
        room = self.heads - self.copy_heads if self.layers > 1 and self.heads >= len(OFFSETS) else 0
        if self.induction_heads > room:
            raise ValueError(
                f"induction_heads is {self.induction_heads}, copy_heads {self.copy_heads}, heads "
                f"{self.heads} and layers {self.layers}; induction takes two layers or more, "
                f"{len(OFFSETS)} heads or more, and has room for {room} beside the copy heads"
            )
        return self
