"""sbatch's refusals, word for word as Slurm 22.05 prints them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.slurm.reasons import explain_rejection

B = "sbatch: error: Batch job submission failed: "
E = "sbatch: error: "
POLICY = "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"

# (stderr, the words that must be kept, a word of the hint)
MESSAGES = [
    (
        f"{E}invalid partition specified: nosuch\n{B}Invalid partition name specified",
        "invalid partition specified: nosuch: Invalid partition name specified",
        "`partition`",
    ),
    (
        f"{E}invalid partition specified: nosuch\nallocation failure: Invalid partition name specified",
        "invalid partition specified: nosuch: Invalid partition name specified",
        "`partition`",
    ),
    (
        f"{B}Invalid account or account/partition combination specified",
        "Invalid account or account/partition combination specified",
        "`account`",
    ),
    (f"{B}Invalid qos specification", "Invalid qos specification", "`qos`"),
    (f"{B}Node count specification invalid", "Node count specification invalid", "fewer nodes"),
    ("allocation failure: Node count specification invalid", "Node count specification invalid", "fewer nodes"),
    (f'{E}"abc" is not a valid node count', '"abc" is not a valid node count', "nodes"),
    (
        f"{B}Requested time limit is invalid (missing or exceeds some limit)",
        "Requested time limit is invalid (missing or exceeds some limit)",
        "`time_limit`",
    ),
    (f"{E}Invalid --time specification", "Invalid --time specification", "`time_limit`"),
    (
        f"{E}Invalid generic resource (gres) specification",
        "Invalid generic resource (gres) specification",
        "`gres_type`",
    ),
    (
        f"{B}Requested node configuration is not available",
        "Requested node configuration is not available",
        "GPUs",
    ),
    (
        f"{E}Memory specification can not be satisfied\n{B}Requested node configuration is not available",
        "Memory specification can not be satisfied: Requested node configuration is not available",
        "`mem`",
    ),
    (f"{E}Invalid --mem specification", "Invalid --mem specification", "`mem`"),
    (
        f"{E}CPU count per node can not be satisfied\n{B}Requested node configuration is not available",
        "CPU count per node can not be satisfied: Requested node configuration is not available",
        "`cpus_per_task`",
    ),
    (f"{B}More processors requested than permitted", "More processors requested than permitted", "`cpus_per_task`"),
    (f"{B}Invalid feature specification", "Invalid feature specification", "`constraint`"),
    (f"{B}Invalid node name specified", "Invalid node name specified", "node names"),
    (f"{B}Requested reservation is invalid", "Requested reservation is invalid", "`reservation`"),
    (f"{B}Job dependency problem", "Job dependency problem", "depend"),
    (f"{B}Invalid job array specification", "Invalid job array specification", "MaxArraySize"),
    (f"{E}Invalid --signal specification", "Invalid --signal specification", "option"),
    (
        f"Invalid time specification (pos=0): yesterdayish\n{E}Invalid --begin specification",
        "Invalid time specification (pos=0): yesterdayish: Invalid --begin specification",
        "option",
    ),
    (
        "sbatch: unrecognized option '--nosuchoption'\nTry \"sbatch --help\" for more information",
        "unrecognized option '--nosuchoption'",
        "option",
    ),
    (
        "sbatch: unrecognized option '--container-image=x.sqsh'\nTry \"sbatch --help\" for more information",
        "unrecognized option '--container-image=x.sqsh'",
        "pyxis",
    ),
    (f"{E}Unable to open file nosuch.sh", "Unable to open file nosuch.sh", "render"),
    (f"{E}QOSMaxNodePerJobLimit\n{B}{POLICY}", f"QOSMaxNodePerJobLimit: {POLICY}", "fewer nodes"),
    (f"{E}QOSMaxSubmitJobPerUserLimit\n{B}{POLICY}", f"QOSMaxSubmitJobPerUserLimit: {POLICY}", "wait"),
    (f"{E}AssocMaxSubmitJobLimit\n{B}{POLICY}", f"AssocMaxSubmitJobLimit: {POLICY}", "wait"),
    (f"{E}QOSMaxWallDurationPerJobLimit\n{B}{POLICY}", f"QOSMaxWallDurationPerJobLimit: {POLICY}", "`time_limit`"),
    (f"{E}AssocMaxGRESPerJob\n{B}{POLICY}", f"AssocMaxGRESPerJob: {POLICY}", "GPUs"),
    (f"{B}{POLICY}", POLICY, "sacctmgr"),
    (
        f"{E}This does not look like a batch script.  The first\n"
        f"{E}line must start with #! followed by the path to an interpreter.\n{E}For instance: #!/bin/sh",
        "This does not look like a batch script. The first line must start with #! followed by the path to an "
        "interpreter. For instance: #!/bin/sh",
        "#!/bin/bash",
    ),
    (f"{E}Batch script is empty!", "Batch script is empty", "template"),
    (
        f"{E}Batch script contains DOS line breaks (\\r\\n)\n{E}instead of expected UNIX line breaks (\\n).",
        "Batch script contains DOS line breaks (\\r\\n) instead of expected UNIX line breaks (\\n)",
        "Unix",
    ),
    (
        f"{B}Pathname of a file, directory or other parameter too long",
        "Pathname of a file, directory or other parameter too long",
        "smaller",
    ),
    (
        f"{B}Unable to contact slurm controller (connect failure)",
        "Unable to contact slurm controller (connect failure)",
        "slurmctld",
    ),
]


def test_a_refusal_keeps_slurms_words_and_says_what_to_change() -> None:
    for stderr, words, hint in MESSAGES:
        problem = explain_rejection(stderr)
        assert problem.what == words
        assert problem.hint is not None and hint in problem.hint, words


def test_an_unknown_refusal_passes_through_without_advice() -> None:
    problem = explain_rejection(f"{B}The moon is in the wrong house")
    assert (problem.what, problem.hint) == ("The moon is in the wrong house", None)


def test_silence_is_said_to_be_silence() -> None:
    assert "without a message" in explain_rejection(" \n").what


@given(st.lists(st.text(st.characters(categories=["Ll", "Nd", "Po"]), min_size=1), max_size=5))
def test_a_refusal_is_one_line_and_loses_no_word(lines: list[str]) -> None:
    problem = explain_rejection("\n".join(f"{E}x{line}x" for line in lines))
    assert "\n" not in problem.what
    for line in lines:
        assert f"x{line}x" in problem.what
