"""Held-back decisions that judge Q models: decision groups, or labelled trees of recordings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from qguide.qnet.errors import ConfigError
from qguide.qnet.models.manifest import JudgedBy, Licence, PriorSection
from qguide.qnet.records import TreeRow
from qguide.training.data.decision_groups import GroupLabels, read_groups
from qguide.training.data.left_out import LeftOut, left_out_of
from qguide.training.data.records import LabelledTree, labelled_tree
from qguide.training.data.row_files import sha256_of_rows
from qguide.training.data.runs import read_rows
from qguide.training.licence.assessment import Assessment, ScoredQModel, licence_of_choice
from qguide.training.licence.scored_decisions import choices_by, sibling_choices_by
from qguide.training.licence.verdict import judged_by_the_rest
from qguide.training.rollouts.models import Inference, build_scorer


@dataclass(frozen=True, slots=True)
class HeldBack:
    """Decisions that judge Q models."""

    rows: Sequence[TreeRow]
    trees: Sequence[LabelledTree]
    judged_by: tuple[JudgedBy, ...]
    left_out: LeftOut

    @classmethod
    def read(cls, groups: Sequence[Path], labels: Sequence[Path] = ()) -> Self:
        """Read run folders of `groups`, or of `label`."""
        rows = {path: list(read_groups(path)) for path in groups}
        trees = {path: [labelled_tree(row) for row in read_rows(path, TreeRow)] for path in labels}
        if judged := next((path for path, own in trees.items() if any(one.target == "judge" for one in own)), None):
            raise ConfigError(f"labels of {judged} are a judge's scores, which judge nothing; label by outcomes")
        tasks = {path: len({one.task_id for one in own}) for path, own in (rows | trees).items()}
        return cls(
            [row for own in rows.values() for row in own],
            [tree for own in trees.values() for tree in own],
            tuple(JudgedBy(name=p.name, sha256=sha256_of_rows([p]), tasks=count) for p, count in tasks.items()),
            left_out_of(tasks),
        )

    def scored(
        self, q_model: str, inference: Inference, labels: GroupLabels, *, prior: PriorSection | None = None
    ) -> ScoredQModel:
        """A Q model's values of the decisions between several candidates.

        Args:
            prior: its own, beside which siblings in trees are chosen, if it is of votes; how often those were taken
                is not how often they will be drawn, so that none can be fitted to them.
        """
        scorer = build_scorer(q_model, inference)
        found = sibling_choices_by(scorer, self.trees) if self.trees else choices_by(scorer, self.rows, labels)
        if not found:
            names = ", ".join(one.name for one in self.judged_by)
            raise ConfigError(
                f"no decision of {names} is between several candidates; draw more of them (decisions.draws), or, where "
                'branching is "none", judge by labels of trees in place of groups'
            )
        known = prior if self.trees and prior and prior.by == "votes" else None
        return ScoredQModel(found, known, fits_prior=not self.trees)

    def assess(self, scored: ScoredQModel) -> Assessment:
        """The verdict on a Q model."""
        assessed = scored.assess()
        return replace(assessed, licence=assessed.licence and self._named(assessed.licence))

    def licence_of_choice(self, scored: Mapping[str, ScoredQModel], best: str) -> Licence:
        """The verdict on the best of several Q models; see `assessment.licence_of_choice`."""
        return self._named(licence_of_choice(scored, best))

    def _named(self, licence: Licence) -> Licence:
        judged = judged_by_the_rest(licence, self.left_out)
        return judged.model_copy(update={"judged_by": self.judged_by})
