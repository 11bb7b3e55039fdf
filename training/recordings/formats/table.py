"""The table of formats: where the parts of an episode lie, and how their files are found.

A format with a translation has its places in a function, because its structure differs.
"""

from collections.abc import Mapping
from typing import Final

from qguide.training.recordings.formats.benchmarks import (
    inspect_records,
    intercode_records,
    read_trials,
    tau2_records,
    trial_records,
)
from qguide.training.recordings.formats.bfcl import bfcl_records, read_answers
from qguide.training.recordings.formats.coding_agents import (
    atif_records,
    mini_swe_records,
    swe_agent_records,
)
from qguide.training.recordings.formats.data_sets import (
    preference_records,
    prompt_records,
    read_sharegpt_record,
)
from qguide.training.recordings.formats.eval_files import read_samples
from qguide.training.recordings.formats.layout import Layout
from qguide.training.recordings.formats.openhands import openhands_records
from qguide.training.recordings.formats.trace_records import langfuse, langsmith, mlflow, phoenix
from qguide.training.recordings.message_records import Places
from qguide.training.recordings.otel_spans import fragments_of
from qguide.training.recordings.served import read_tree_record

_MINT: Final = Places(
    messages="history",
    rewards=("success",),
    sources=("model",),
    tasks=("set+task_id", "task_id"),
    graded=True,
)
_MINT_RUN: Final = Places(
    messages="state.history",
    rewards=("state.success",),
    tasks=("task.task_id",),
    sources=("state.model",),
    graded=True,
)

FORMATS: Final[Mapping[str, Layout]] = {
    "served": Layout(("nodes",), read=read_tree_record),
    "messages": Layout(("messages",)),
    "sharegpt": Layout(
        ("conversations",), read=lambda record, fields: [read_sharegpt_record(record, fields)]
    ),
    "otel": Layout(("resourceSpans", "resourceLogs"), fragments=fragments_of),
    "langfuse": Layout(
        (
            "traceId type",
            "trace_id type",
            "traceId value",
            "trace_id value name",
            "id observations",
        ),
        fragments=langfuse,
    ),
    "langsmith": Layout(("run_type inputs trace_id", "run_type child_runs"), fragments=langsmith),
    "mlflow": Layout(("info data.spans",), fragments=mlflow),
    "phoenix": Layout(("context.trace_id span_kind",), fragments=phoenix),
    "atif": Layout(
        ("schema_version steps agent",),
        translate=atif_records,
        files=("trajectory.json", "trajectory.cont-*.json", "*.atif.json"),
        beside="../result.json",
    ),
    "tau-bench": Layout(("traj reward",), Places(messages="traj")),
    "tau2-bench": Layout(
        ("simulations info",), translate=tau2_records, within="simulations", keeping=("info",)
    ),
    "swe-agent": Layout(("history trajectory",), translate=swe_agent_records, files=("*.traj",)),
    "mini-swe-agent": Layout(
        ("messages trajectory_format", "messages info.mini_version"),
        translate=mini_swe_records,
        files=("*.traj.json",),
    ),
    "openhands": Layout(
        ("instance_id history",), translate=openhands_records, files=("output*.jsonl",)
    ),
    "inspect": Layout(
        ("samples eval",),
        translate=inspect_records,
        files=("*.eval",),
        values=read_samples,
    ),
    "terminal-bench": Layout(
        ("trial_name is_resolved",),
        translate=trial_records,
        files=("results.json",),
        values=read_trials,
    ),
    "intercode": Layout(("*.turn_history",), translate=intercode_records, within="*"),
    "bfcl": Layout(translate=bfcl_records, files=("*_result.json",), values=read_answers),
    "mint": Layout(("history success task_id",), _MINT),
    "mint-run": Layout(("state.history task",), _MINT_RUN),
    "trl": Layout(("prompt completion",), translate=prompt_records),
    "verl": Layout(("input output score",), translate=prompt_records),
    "preferences": Layout(
        ("preferred_output non_preferred_output", "chosen rejected"),
        translate=preference_records,
    ),
}
