"""Jobs of the pages on recorded candidates; a stage of a pipeline names them by import path."""

from typing import Final

from qguide.jobs.table import Job

GROUPS: Final = Job(
    "recorded-groups",
    "benchmarks.recorded.groups:RecordedGroupsConfig",
    "Data",
    "Decision groups from recorded LLM episodes on InterCode-SQL.",
)
RERANK: Final = Job(
    "rerank-recorded",
    "benchmarks.recorded.rerank:RerankConfig",
    "Evaluation",
    "Choose among recorded candidates by Q and by its baselines; nothing is played.",
)
ATTEMPTS: Final = Job(
    "replay-attempts",
    "benchmarks.recorded.attempts:ReplayAttemptsConfig",
    "Evaluation",
    "Replay recorded attempts against a running server that tells which go on.",
)
QNETS: Final = Job(
    "qnet-recorded",
    "benchmarks.recorded.qnets:QNetRecordedConfig",
    "Evaluation",
    "Choose among recorded attempts by QNets from scratch, in the folds of choose-recorded.",
)
RECORDED: Final = (GROUPS, RERANK, ATTEMPTS, QNETS)
