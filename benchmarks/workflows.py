"""Shapes of published scientific workflows, with durations of about the size of theirs.

Montage, CyberShake, Epigenomics, Inspiral (LIGO) and SIPHT: structure by Juve, Chervenak, Deelman, Bharathi, Mehta and
Vahi, "Characterizing and profiling scientific workflows", Future Generation Computer Systems 29 (2013). The durations
were not compared with that paper's tables. Inspiral's agree within 3 % with the means of Inspiral_1000 in WorkflowSim's
examples (github.com/WorkflowSim/WorkflowSim-1.0). The other means there differ by up to a hundred times, as their
inputs do. Seismology: the fork and join of its instances at WfCommons (Coleman, Casanova, Pottier, Kaushik, Deelman and
Ferreira da Silva, "WfCommons: a framework for enabling scientific workflow research and development", Future Generation
Computer Systems 128 (2022)), with estimated durations. A task's duration is drawn around its kind's mean.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

SECONDS = {  # mean durations of their tasks
    "mProjectPP": 1.73,
    "mDiffFit": 0.66,
    "mConcatFit": 143.26,
    "mBgModel": 384.49,
    "mBackground": 1.72,
    "mImgtbl": 2.78,
    "mAdd": 282.37,
    "mShrink": 66.10,
    "mJPEG": 0.64,
    "ExtractSGT": 110.58,
    "SeismogramSynthesis": 79.47,
    "ZipSeis": 265.73,
    "PeakValCalc": 0.55,
    "ZipPSA": 195.80,
    "fastqSplit": 34.32,
    "filterContams": 2.47,
    "sol2sanger": 0.48,
    "fastq2bfq": 1.40,
    "map": 201.89,
    "mapMerge": 11.01,
    "maqIndex": 43.57,
    "pileup": 55.95,
    "TmpltBank": 18.14,
    "Inspiral": 460.21,
    "Thinca": 5.37,
    "TrigBank": 5.11,
    "Patser": 0.96,
    "PatserConcate": 0.03,
    "Transterm": 32.41,
    "Findterm": 594.94,
    "RNAMotif": 25.69,
    "Blast": 3311.12,
    "SRNA": 12.44,
    "FFNParse": 0.73,
    "BlastSynteny": 3.37,
    "BlastCandidate": 0.60,
    "BlastQRNA": 440.88,
    "BlastParalogues": 0.68,
    "SRNAAnnotate": 0.14,
    "sG1IterDecon": 8.0,
    "siftSTFByMisfit": 1.5,
}
SPREAD = 0.5  # sigma of the logarithm of a duration
TASKS = (20, 300)  # in a graph: least, most


class Node(NamedTuple):
    """A task: its kind, how long it takes (seconds), and the places of its parents in the graph."""

    kind: str
    seconds: float
    parents: tuple[int, ...]


class Graph:
    """A graph in the making. ``name``: of its workflow."""

    def __init__(self, name: str, chance: random.Random) -> None:
        self.name = name
        self.nodes: list[Node] = []
        self._chance = chance

    def add(self, kind: str, *parents: int | Sequence[int]) -> int:
        above = tuple(p for one in parents for p in ([one] if isinstance(one, int) else one))
        spread = self._chance.lognormvariate(-SPREAD * SPREAD / 2, SPREAD)
        self.nodes.append(Node(kind, SECONDS[kind] * spread, above))
        return len(self.nodes) - 1

    def each(self, kind: str, parents: Sequence[int]) -> list[int]:
        return [self.add(kind, parent) for parent in parents]

    @property
    def work(self) -> float:
        return sum(node.seconds for node in self.nodes)

    @property
    def longest(self) -> float:
        """The longest way through it."""
        ends: list[float] = []
        for node in self.nodes:
            ends.append(node.seconds + max((ends[p] for p in node.parents), default=0.0))
        return max(ends)


def montage(graph: Graph, size: int) -> None:
    images = max(3, (size - 6) // 5)
    projected = [graph.add("mProjectPP") for _ in range(images)]
    pairs = [(a, b) for step in (1, 2, 3) for a, b in zip(projected, projected[step:], strict=False)]
    model = graph.add("mBgModel", graph.add("mConcatFit", [graph.add("mDiffFit", *pair) for pair in pairs]))
    added = graph.add("mAdd", graph.add("mImgtbl", [graph.add("mBackground", model, one) for one in projected]))
    graph.add("mJPEG", graph.add("mShrink", added))


def cybershake(graph: Graph, size: int) -> None:
    sites = max(2, size // 50)
    each = max(1, (size - 2 - sites) // (2 * sites))
    seismograms = [
        one
        for _ in range(sites)
        for sgt in [graph.add("ExtractSGT")]
        for one in graph.each("SeismogramSynthesis", [sgt] * each)
    ]
    peaks = graph.each("PeakValCalc", seismograms)
    graph.add("ZipSeis", seismograms)
    graph.add("ZipPSA", peaks)


def epigenomics(graph: Graph, size: int) -> None:
    lanes = max(1, size // 100)
    each = max(1, (size - 3 - 2 * lanes) // (4 * lanes))
    merged = []
    for _ in range(lanes):
        parts = [graph.add("fastqSplit")] * each
        for kind in ("filterContams", "sol2sanger", "fastq2bfq", "map"):
            parts = graph.each(kind, parts)
        merged.append(graph.add("mapMerge", parts))
    graph.add("pileup", graph.add("maqIndex", graph.add("mapMerge", merged)))


def inspiral(graph: Graph, size: int) -> None:
    each = max(1, (size - 2) // 4)
    first = graph.each("Inspiral", [graph.add("TmpltBank") for _ in range(each)])
    again = graph.each("Inspiral", graph.each("TrigBank", [graph.add("Thinca", first)] * each))
    graph.add("Thinca", again)


def sipht(graph: Graph, size: int) -> None:
    """One replicon, whatever the size: larger ones are several of these without an edge between them."""
    patser = graph.add("PatserConcate", [graph.add("Patser") for _ in range(17 + size % 5)])
    found = [graph.add(kind) for kind in ("Transterm", "Findterm", "RNAMotif", "Blast")]
    srna = graph.add("SRNA", found)
    parsed = graph.add("FFNParse", srna)
    blasts = [graph.add(kind, srna) for kind in ("BlastCandidate", "BlastQRNA", "BlastParalogues")]
    graph.add("SRNAAnnotate", graph.add("BlastSynteny", parsed), blasts, patser)


def seismology(graph: Graph, size: int) -> None:
    graph.add("siftSTFByMisfit", [graph.add("sG1IterDecon") for _ in range(size - 1)])


WORKFLOWS = (montage, cybershake, epigenomics, inspiral, sipht, seismology)


def mix(number: int, seed: int) -> list[Graph]:
    """So many graphs, as many of each workflow, in a random order; small ones are more common than large ones."""
    chance = random.Random(seed)
    graphs = []
    for n in range(number):
        workflow = WORKFLOWS[n % len(WORKFLOWS)]
        graphs.append(Graph(workflow.__name__, chance))
        workflow(graphs[-1], round(TASKS[0] * (TASKS[1] / TASKS[0]) ** chance.random()))
    chance.shuffle(graphs)
    return graphs
