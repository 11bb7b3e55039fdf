from qguide.qnet.records import NodeRow, TreeRow
from qguide.training.recordings.fields import Fields
from qguide.training.recordings.served import read_tree_record


def tree(*rewards: float) -> dict[str, object]:
    """One path, whose environment tells the outcome so far after each action."""
    nodes = tuple(
        NodeRow(
            id=number,
            parent=number - 1,
            depth=number,
            action=f"Action: step {number}",
            observation="Done.",
            reward=reward,
            source="policy",
        )
        for number, reward in enumerate(rewards, 1)
    )
    row = TreeRow(
        task_id="t",
        kind="find",
        environment="e",
        first_observation="Begin.",
        nodes=nodes,
        draws=len(nodes),
    )
    return row.model_dump(mode="json")


def test_rewards_on_the_way_of_a_tree_come_with_its_episodes() -> None:
    (episode,) = read_tree_record(tree(0.2, 0.6), Fields())
    assert episode.to_row(environment="e").rewards == (0.2, 0.6)


def test_an_outcome_at_the_end_alone_is_no_reward_on_the_way() -> None:
    (episode,) = read_tree_record(tree(0.0, 0.6), Fields())
    assert episode.to_row(environment="e").rewards == ()
