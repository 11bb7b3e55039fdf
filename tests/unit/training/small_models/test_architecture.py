"""A new Llama whose copy heads and numbered names are initialised."""

import pytest
import torch
from pydantic import ValidationError

from qguide.training.architecture import Architecture
from qguide.training.small_models import build_llama, train_tokenizer

TEXTS = [f"Put a {word} there: {n}, a {word} {n}." for word in ("pen", "cup") for n in range(9)]
SHAPE = Architecture(vocab_size=600, hidden_size=32, intermediate_size=64, layers=2, heads=4, numbered_words=True)


def test_a_numbered_word_begins_as_the_sum_of_its_word_and_its_number() -> None:
    tokenizer = train_tokenizer(TEXTS, vocab_size=600, numbered_words=True)
    embedding_VD = build_llama(SHAPE, tokenizer).model.embed_tokens.weight

    def vector(text: str) -> torch.Tensor:
        (token_id,) = tokenizer(text, add_special_tokens=False)["input_ids"]
        vector_D: torch.Tensor = embedding_VD[token_id]
        return vector_D

    torch.testing.assert_close(vector(" cup 7"), vector(" cup") + vector(" 7"))
    torch.testing.assert_close(vector(" cup 7") - vector(" cup 3"), vector(" 7") - vector(" 3"))


def test_a_recall_head_attends_to_its_own_token_and_copies_it() -> None:
    torch.manual_seed(0)
    tokenizer = train_tokenizer(TEXTS, vocab_size=600)
    shape = SHAPE.model_copy(update={"copy_heads": 1})
    attention = build_llama(shape, tokenizer).model.layers[1].self_attn
    recalls, blank = slice(0, 8), slice(8, 16)
    x_ND = torch.nn.functional.normalize(torch.randn(20, 32)) * 32**0.5
    for rows, own in ((recalls, 1.0), (blank, 0.0)):
        q_NE, k_NE = x_ND @ attention.q_proj.weight[rows].T, x_ND @ attention.k_proj.weight[rows].T
        scores_NN = q_NE @ k_NE.T
        found = (scores_NN.argmax(1) == torch.arange(20)).float().mean()
        assert (found > 0.8) == bool(own)
    copied_ND = x_ND @ attention.v_proj.weight[recalls].T @ attention.o_proj.weight[:, recalls].T
    assert (torch.nn.functional.cosine_similarity(copied_ND, x_ND) > 0.1).float().mean() > 0.9


def test_more_recall_heads_than_heads_are_refused() -> None:
    with pytest.raises(ValidationError, match=r"copy_heads is 7 .*heads 6; .* 6 "):
        Architecture(copy_heads=7)


def repeated_rightly(induction_heads: int) -> float:
    """Share of 100 random tokens that a new model says again when they begin once more."""
    torch.manual_seed(0)
    tokenizer = train_tokenizer(TEXTS, vocab_size=600)
    shape = Architecture(
        vocab_size=600, hidden_size=128, layers=2, heads=4, induction_heads=induction_heads, rope_theta=1e9
    )
    once_BT = torch.randint(len(tokenizer), (4, 100))
    ids_BT = torch.cat([once_BT, once_BT], 1)
    with torch.no_grad():
        said_BT = build_llama(shape, tokenizer)(ids_BT).logits.argmax(-1)
    # Three tokens have to be there before the fourth can be found by them.
    return float((said_BT[:, 102:-1] == ids_BT[:, 103:]).float().mean())


def test_induction_heads_repeat_a_sequence_before_any_training() -> None:
    assert repeated_rightly(4) > 0.9
    assert repeated_rightly(0) < 0.1


def test_induction_heads_leave_the_copy_heads_of_the_second_layer() -> None:
    tokenizer = train_tokenizer(TEXTS, vocab_size=600)
    shape = SHAPE.model_copy(update={"copy_heads": 1, "induction_heads": 1})
    attention = build_llama(shape, tokenizer).model.layers[1].self_attn
    query_HED = attention.q_proj.weight.view(4, 8, 32)
    key_HED = attention.k_proj.weight.view(4, 8, 32)
    alike_H = [torch.equal(query_HED[head], key_HED[head]) for head in range(4)]
    silent_H = [(query_HED[head] == 0).all(1).any().item() for head in range(4)]
    assert alike_H == [True, False, False, False]
    assert silent_H == [False, True, False, False]


@pytest.mark.parametrize("options", [{"heads": 4, "copy_heads": 3}, {"heads": 2}, {"layers": 1, "heads": 4}])
def test_induction_heads_without_room_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(ValidationError, match=r"induction_heads is 2, copy_heads .*heads .*layers \d; "):
        Architecture.model_validate({"induction_heads": 2, **options})
