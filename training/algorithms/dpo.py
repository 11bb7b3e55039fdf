"""Direct preference optimization, at the level of steps or of whole trajectories.

    Q(s, a) = beta * (log pi_theta(a | s) - log pi_ref(a | s))          (StepQ, equation 9)
    loss = -log sigmoid(Q(s, a_chosen) - Q(s, a_rejected))              (StepQ, equations 7 and 8)

The logarithms are sums over the tokens of the replies, their end-of-turn tokens included; those of
observations do not count. At the level of trajectories a is all replies of an episode.
"""

from torch import Tensor
from torch.nn.functional import logsigmoid


def implicit_q(policy_logprob: Tensor, reference_logprob: Tensor, *, beta: float) -> Tensor:
    """Implicit Q of replies: (R,) and (R,) to (R,).

    Args:
        policy_logprob: of each reply under the policy, summed over its tokens.
        reference_logprob: the same under the reference.
        beta: strength of the tie to the reference, above 0.
    """
    return beta * (policy_logprob - reference_logprob)


def dpo_loss(chosen_q: Tensor, rejected_q: Tensor) -> Tensor:
    """Loss of each pair: (P,) and (P,) to (P,); log 2 where the Q-values are equal."""
    return -logsigmoid(chosen_q - rejected_q)
