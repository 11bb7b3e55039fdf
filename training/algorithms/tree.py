"""Attempts at a task, as an immutable tree with named values (QLASS 4.2, algorithm 2).

A node is an action and its effect; its state is the path from the root. The root, id 0, is the
task before any action. Ids number the nodes in the order in which they were merged, so parents come
before their children, and older siblings before younger ones.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from qguide.qnet.records import ROOT_ID
from qguide.qnet.types import History, Message
from qguide.training.trajectory import Step, observation_message, reply_key, step_messages

EXPERT = "expert"
"""The `source` of an expert's nodes and trajectories; other sources are names of policies."""


@dataclass(frozen=True, slots=True)
class Node:
    """One action and its place in the tree.

    Attributes:
        depth: number of actions from the root, this one included.
        source: source of the trajectory that added the node: "expert" or a policy's name.
        mistake: nobody is to imitate it.
        count: how many of the merged episodes ended here; 1 where that was not counted.
    """

    id: int
    parent: int
    depth: int
    step: Step
    source: str
    mistake: bool = False
    count: int = 1


@dataclass(frozen=True, slots=True)
class Tree:
    """The explored actions of one task.

    Attributes:
        first_observation: the root's state.
        nodes: node `id` is at index `id - 1`.
        children: ids of the children of node `id`, oldest first, are at index `id`.
        opening: the root's state as messages, without a system message; empty if it is one user
            message of the text `first_observation`.
        system: the system message before the opening, None without one.
        values: named columns, each with the values of some nodes by their ids, such as a search's
            mean outcomes or a label.
    """

    first_observation: str
    nodes: tuple[Node, ...] = ()
    children: tuple[tuple[int, ...], ...] = ((),)
    opening: History = ()
    system: str | None = None
    values: Mapping[str, Mapping[int, float]] = field(default_factory=lambda: MappingProxyType({}))

    def node(self, node_id: int) -> Node:
        """The node with an id other than the root's."""
        return self.nodes[node_id - 1]

    def depth(self, node_id: int) -> int:
        """Number of actions from the root to the node."""
        return 0 if node_id == ROOT_ID else self.node(node_id).depth

    def path(self, node_id: int) -> tuple[Node, ...]:
        """The nodes from the root (excluded) to `node_id` (included)."""
        nodes: list[Node] = []
        while node_id != ROOT_ID:
            nodes.append(self.node(node_id))
            node_id = nodes[-1].parent
        return tuple(reversed(nodes))

    def idles(self, node_id: int) -> bool:
        """True if neither this action nor the one before it had an effect."""
        if node_id == ROOT_ID or (parent := self.node(node_id).parent) == ROOT_ID:
            return False
        return not self.node(node_id).step.valid and not self.node(parent).step.valid

    def history(self, node_id: int) -> History:
        """The state after `node_id`, as the policy sees it before its next action."""
        messages = [] if self.system is None else [Message("system", self.system)]
        messages += self.opening or (observation_message(self.first_observation),)
        for node in self.path(node_id):
            messages += step_messages(node.step)
        return tuple(messages)

    def leaves(self) -> Iterator[Node]:
        """The nodes without children, in the order of a depth-first walk."""
        waiting = [*reversed(self.children[ROOT_ID])]
        while waiting:
            node_id = waiting.pop()
            waiting.extend(reversed(self.children[node_id]))
            if not self.children[node_id]:
                yield self.node(node_id)


def tree_of(
    first_observation: str,
    nodes: Sequence[Node],
    *,
    opening: History = (),
    system: str | None = None,
    values: Mapping[str, Mapping[int, float]] = MappingProxyType({}),
) -> Tree:
    """The tree of these nodes, in which parents come before their children."""
    children: list[tuple[int, ...]] = [() for _ in range(len(nodes) + 1)]
    for node in nodes:
        children[node.parent] += (node.id,)
    return Tree(first_observation, tuple(nodes), tuple(children), opening, system, values)


def without_untried(tree: Tree) -> Tree:
    """The tree of the actions alone, without the candidates that nobody took and their values.

    A leaf's reward is its return. Of such a candidate neither is known.
    """
    tried = [node for node in tree.nodes if node.step.tried]
    if len(tried) == len(tree.nodes):
        return tree
    ids = {ROOT_ID: ROOT_ID} | {node.id: number for number, node in enumerate(tried, start=1)}
    nodes = [replace(node, id=ids[node.id], parent=ids[node.parent]) for node in tried]
    values = {
        name: {ids[node_id]: value for node_id, value in column.items() if node_id in ids}
        for name, column in tree.values.items()
    }
    return tree_of(tree.first_observation, nodes, opening=tree.opening, system=tree.system, values=values)


def find_child(tree: Tree, node_id: int, reply: Message) -> int | None:
    """The child of a node with the same action, whatever its thought; None without one."""
    key = reply_key(reply)
    return next((child for child in tree.children[node_id] if reply_key(tree.node(child).step.message) == key), None)


def merge_branch(
    tree: Tree,
    steps: Sequence[Step],
    *,
    at: int = ROOT_ID,
    source: str,
    mistakes: Collection[int] = (),
    episodes: int = 0,
) -> tuple[Tree, tuple[int, ...]]:
    """Add a trajectory below node `at`; it shares nodes with the tree as far as they agree.

    Replies with equal actions and equal observations become one node, which keeps the first reply.
    An observation that a recording lacks at its end equals any other and is replaced by it. An
    empty one that was recorded, such as a tool's empty result, equals only another empty one.
    A step of which it is recorded that the episode ended there equals only another such end.
    Merging the same branch twice changes nothing, unless its episodes are counted.

    Args:
        mistakes: indices of the steps that are not to be imitated. A shared node is to be, if it is
            in any of its branches.
        episodes: how many took this branch; a leaf has the mean reward of those that ended there. One that a longer
            one continues was cut short: its last reward is the longer one's. 0 of a search: it draws in a state until
            something is new, which says nothing of how often.

    Returns:
        The new tree, and the ids of the branch's nodes in order, shared ones included.
    """
    nodes, children = list(tree.nodes), list(tree.children)
    branch: list[int] = []
    parent, shared = at, True
    for index, step in enumerate(steps):
        mistake = index in mistakes
        is_open = step.left_open and index == len(steps) - 1
        known = _shared_child(nodes, children, parent, step, is_open=is_open) if shared else None
        if known is not None and _is_open(nodes, children, known):
            nodes[known - 1] = _observing(nodes[known - 1], step)
        if known is None:
            if episodes and shared and parent != at and not children[parent]:
                nodes[parent - 1] = _going_on(nodes[parent - 1], steps[index - 1])
            shared, known = False, len(nodes) + 1
            depth = tree.depth(at) + len(branch) + 1
            nodes.append(Node(known, parent, depth, step, source, mistake))
            children[parent] += (known,)
            children.append(())
        if nodes[known - 1].mistake and not mistake:
            nodes[known - 1] = replace(nodes[known - 1], mistake=False)
        branch.append(known)
        parent = known
    if branch and episodes and not children[parent]:
        before = tree.node(parent) if shared else None
        nodes[parent - 1] = _ended_here(nodes[parent - 1], steps[-1], episodes, before=before)
    merged = replace(tree, nodes=tuple(nodes), children=tuple(children))
    return merged, tuple(branch)


def _shared_child(
    nodes: Sequence[Node], children: Sequence[tuple[int, ...]], parent: int, step: Step, *, is_open: bool
) -> int | None:
    """The child with the same action and the same observation; None without one."""
    key = step.key if children[parent] else ""
    for sibling in children[parent]:
        known = nodes[sibling - 1].step
        alike = known.observation == step.observation and (known.terminated is True) == (step.terminated is True)
        alike = alike or is_open or _is_open(nodes, children, sibling)
        if alike and known.key == key:  # the key last: it is read out of the text
            return sibling
    return None


def _is_open(nodes: Sequence[Node], children: Sequence[tuple[int, ...]], node_id: int) -> bool:
    return not children[node_id] and nodes[node_id - 1].step.left_open


def _observing(node: Node, step: Step) -> Node:
    """The node with the observation of another recording of it."""
    # With its reply: the calls in the one are answered by their ids in the other.
    seen = replace(
        node.step,
        observation=step.observation,
        observed=step.observed,
        terminated=step.terminated,
        reply=step.reply,
        tried=node.step.tried or step.tried,
    )
    return replace(node, step=seen)


def _ended_here(leaf: Node, last: Step, episodes: int, *, before: Node | None) -> Node:
    """A leaf with so many more episodes, whose last step is `last`; `before` is the leaf as it was, None if it is new.

    Those that were cut short before their last answer count only where nothing else is recorded.
    """
    whole, cut = not last.left_open, before is not None and before.step.left_open
    if before is None or (whole and cut):
        return _ended(leaf, last.reward, episodes)
    if whole or cut:
        return _ended(leaf, _mean(leaf, last.reward, episodes), leaf.count + episodes)
    return leaf


def _ended(node: Node, reward: float, episodes: int) -> Node:
    return replace(node, count=episodes, step=replace(node.step, reward=reward))


def _going_on(node: Node, step: Step) -> Node:
    """A leaf after which a longer episode goes on, whose step it is."""
    return replace(node, count=1, step=replace(node.step, reward=step.reward, terminated=step.terminated))


def _mean(node: Node, reward: float, episodes: int) -> float:
    """Reward of a leaf after so many more episodes; exactly the one that all have."""
    if node.step.reward == reward:
        return reward
    return (node.step.reward * node.count + reward * episodes) / (node.count + episodes)


def mistakes_of(path: Sequence[Node]) -> tuple[int, ...]:
    """Indices of a path's actions that nobody is to imitate."""
    return tuple(index for index, node in enumerate(path) if node.mistake)


def branching_fraction(tree: Tree, *, depth: int | None = None) -> float:
    """Share of the inner nodes, the root included, that have at least two children.

    Args:
        tree: a tree without actions gives 0.
        depth: depth of the deepest node that counts; None counts all nodes.
    """
    widths = [
        len(children)
        for node_id, children in enumerate(tree.children)
        if children and (depth is None or tree.depth(node_id) <= depth)
    ]
    return sum(width >= 2 for width in widths) / len(widths) if widths else 0.0


def merge_trees(trees: Sequence[Tree]) -> Tree:
    """Merge several explorations of the same task, with the same opening, into one tree.

    Each counts the episodes of its leaves. Their values are those of single explorations, and only
    a single one keeps them.
    """
    merged, *others = trees
    if others:
        merged = replace(merged, values={})
    for other in others:
        for leaf in other.leaves():
            path = other.path(leaf.id)
            steps = [node.step for node in path]
            merged, _ = merge_branch(merged, steps, source=leaf.source, mistakes=mistakes_of(path), episodes=leaf.count)
    return merged
