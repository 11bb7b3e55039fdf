"""A clinic: tests, their findings, and treatments that depend on them, as tools; graded reward.

    qguide environment check benchmarks.strangers.aside.clinic:Clinic

A symptom tells which test shows something, the symptom with the patient's trade what it shows, and
that which drug helps and which advice. Somebody who is allergic to the drug is referred in its
place. The mock that treats knows half of this, and is careless.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from random import Random

from benchmarks.strangers.mock_policy import Mistake, MockPolicy, Option, beliefs, tool
from benchmarks.strangers.worlds import shared_out, world_and_number
from qguide.qnet.types import History

SYMPTOMS = ("headache", "cough", "rash", "fever", "dizziness", "cramps")
TRADES = ("baker", "diver", "farmer", "miner", "tailor")
TESTS = ("blood", "breath", "skin", "reflex")
FINDINGS = ("iron", "spores", "mites", "lead", "salt", "pollen")
DRUGS = ("amelin", "borvat", "cassol", "dorfin")
ADVICE = ("rest", "diet", "exercise")
_PATIENT = re.compile(r"a (\w+) with (\w+), allergic to (\w+)\.")
_FOUND = re.compile(r"The (\w+) test finds (\w+)\.")


@dataclass(frozen=True)
class Knowledge:
    """Facts of one clinic.

    Attributes:
        test: for each symptom.
        finding: for each pair "symptom, trade".
        drug, advice: for each finding.
        patients: symptom, trade and allergy, in the order of their numbers.
    """

    test: dict[str, str]
    finding: dict[str, str]
    drug: dict[str, str]
    advice: dict[str, str]
    patients: tuple[tuple[str, str, str], ...]


@lru_cache(maxsize=64)
def knowledge(world: int) -> Knowledge:
    """The knowledge of a world."""
    chance = Random(f"clinic {world}")
    patients = list(product(SYMPTOMS, TRADES, DRUGS))
    pairs = [f"{symptom}, {trade}" for symptom in SYMPTOMS for trade in TRADES]
    facts = (
        shared_out(SYMPTOMS, TESTS, chance),
        shared_out(pairs, FINDINGS, chance),
        shared_out(FINDINGS, DRUGS, chance),
        shared_out(FINDINGS, ADVICE, chance),
    )
    chance.shuffle(patients)
    return Knowledge(*facts, tuple(patients))


class Clinic:
    """One patient; the public methods are the tools."""

    system = (
        "You treat patients. Test before you treat. Refer whoever is allergic to the drug that "
        "would help. Give advice, then discharge."
    )

    def reset(self, *, seed: int = 0) -> str:
        """Admit the patient of that number."""
        world, number = world_and_number(seed)
        self._known = knowledge(world)
        self._patients = self._known.patients[number % len(self._known.patients)]
        self._tested, self._worth, self._treated = False, 0.0, ""
        self._advised, self.done = "", False
        symptom, trade, allergy = self._patients
        return f"Patient: a {trade} with {symptom}, allergic to {allergy}."

    @property
    def _finding(self) -> str:
        symptom, trade, _ = self._patients
        return self._known.finding[f"{symptom}, {trade}"]

    def test(self, kind: str) -> str:
        """Test a patient.

        Args:
            kind: blood, breath, skin or reflex.
        """
        if kind not in TESTS:
            raise ValueError(f"{kind!r} is no test: {', '.join(TESTS)}")
        if kind != self._known.test[self._patients[0]]:
            return f"The {kind} test shows nothing."
        self._tested = True
        return f"The {kind} test finds {self._finding}."

    def prescribe(self, drug: str) -> str:
        """Treat with a drug; a patient is treated once.

        Args:
            drug: amelin, borvat, cassol or dorfin.
        """
        if drug not in DRUGS:
            raise ValueError(f"{drug!r} is no drug: {', '.join(DRUGS)}")
        return self._treat(drug)

    def refer(self) -> str:
        """Send the patient to a specialist in place of a treatment."""
        return self._treat("referral")

    def advise(self, on: str) -> str:
        """Give one piece of advice.

        Args:
            on: rest, diet or exercise.
        """
        if on not in ADVICE:
            raise ValueError(f"{on!r} is no advice: {', '.join(ADVICE)}")
        if self._advised:
            return "The patient refuses more advice."
        self._advised = on
        return f"The patient will try {on}."

    def discharge(self) -> str:
        """Let the patient go, which ends the work."""
        self.done = True
        return "The patient leaves."

    def get_reward(self) -> float:
        """0.6 for the right treatment, half of it untested, and 0.4 for the right advice."""
        right = self._known.drug[self._finding]
        right = "referral" if right == self._patients[2] else right
        worth = (0.6 if self._tested else 0.3) * (self._treated == right)
        worth += 0.4 * (self._advised == self._known.advice[self._finding])
        return 0.0 if self._treated == self._patients[2] else worth if self.done else worth / 2

    def _treat(self, treatment: str) -> str:
        if self._treated:
            return "The patient refuses another treatment."
        self._treated = treatment
        return f"The patient accepts the {treatment}."


def policy(world: int = 0) -> MockPolicy:
    """The mock that treats the patients of a world."""
    return MockPolicy("clinic-mock", _Beliefs(world).options)


class _Beliefs:
    """Shares by which the mock guesses what holds."""

    def __init__(self, world: int) -> None:
        known, chance = knowledge(world), Random(f"clinic mock {world}")
        self._test = beliefs(known.test, TESTS, chance)
        self._drug = beliefs(known.drug, DRUGS, chance)
        self._advice = beliefs(known.advice, ADVICE, chance)

    def options(self, history: History) -> list[Option]:
        """The replies in a state."""
        start, *turns = [message for message in history if message.role != "system"]
        patient = _PATIENT.search(start.content)
        assert patient is not None
        _, symptom, allergy = patient.groups()
        said = " ".join(message.content for message in turns)
        found = _FOUND.search(said)
        finding = found[2] if found else ""
        calls = [call for message in turns for call in message.tool_calls]
        treated, advised = "accepts" in said, "will try" in said
        options = [
            tool("test", {"sort": symptom}, 0.03, "malformed"),
            tool("discharge", {}, 0.9 if treated and advised else 0.04, _early(treated, advised)),
        ]
        if calls and turns[-1].content.startswith(("The patient refuses", "Error")):
            options.append(tool(calls[-1].name, _arguments(calls[-1].arguments), 0.1, "repeat"))
        if not finding:
            options += self._tests(symptom, {call.arguments for call in calls})
        if not treated:
            options += self._treats(finding, allergy)
        for on, share in (self._advice.get(finding) or _even(ADVICE)).items():
            options.append(tool("advise", {"on": on}, share * (0.02 if advised else 0.3), "guess"))
        return options

    def _tests(self, symptom: str, made: set[str]) -> Iterator[Option]:
        for kind, share in self._test[symptom].items():
            again = any(f'"{kind}"' in arguments for arguments in made)
            again_kind: Mistake = "repeat" if again else "guess"
            yield tool("test", {"kind": kind}, 0.8 * share * (0.3 if again else 1), again_kind)

    def _treats(self, finding: str, allergy: str) -> Iterator[Option]:
        weight = 0.6 if finding else 0.2
        yield tool("refer", {}, weight * 0.25, "guess" if finding else "skip")
        for drug, share in (self._drug.get(finding) or _even(DRUGS)).items():
            kind: Mistake = "rule" if drug == allergy else "guess" if finding else "skip"
            yield tool("prescribe", {"drug": drug}, weight * share, kind)


def _early(treated: bool, advised: bool) -> Mistake:
    return "" if treated and advised else "stop"


def _arguments(arguments: str) -> dict[str, str]:
    return dict(re.findall(r'"(\w+)": "([^"]*)"', arguments))


def _even(values: tuple[str, ...]) -> Mapping[str, float]:
    return dict.fromkeys(values, 1 / len(values))
