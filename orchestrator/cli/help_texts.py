"""Examples in the help of commands. The reference page of all commands has them, too."""

from __future__ import annotations

EXAMPLES = {
    "list": ("repro list",),
    "show": (
        "repro show figure-13                                  # cases, axes, published numbers, claims",
        "repro show sc21                                       # experiments of a paper",
        "repro show core-cp --script                           # the published scripts, and the differences",
    ),
    "plan": (
        "repro plan table-1 --cluster selene",
        "repro plan sc21                                       # a whole paper, on its own machine",
        "repro plan figure-13 --cluster h200 --scale quad --time-budget 10m",
    ),
    "status": (
        "repro status figure-13 --watch",
        "repro status --cluster selene --state running,pending",
        "repro status figure-13 --failed",
    ),
    "logs": (
        "repro logs 77a694 -f                                  # the first characters of a job id",
        "repro logs 77a694 --rank 3 --attempt 1",
    ),
    "history": ("repro history 77a694",),
    "sql": (
        'repro sql "select * from v_results"',
        "repro sql                                             # views and tables",
    ),
    "submit": (
        "repro submit figure-13 --cluster selene --dry-run     # show the jobs",
        "repro submit figure-13 --cluster selene --canary --wait",
        "repro submit figure-13 figure-16 --cluster selene     # a job that they share runs once",
    ),
    "render": (
        "repro render figure-13 --cluster selene --where pp=8,gbs=32",
        "repro render figure-13 --cluster selene --example     # with examples for open values",
        "repro render figure-13 --cluster selene -o jobs       # all scripts, to submit by hand",
    ),
    "search": ("repro search gpt-6.7b --gpus 16 --gbs 512 --cluster selene --budget 6gpu-hours",),
    "adopt": ("repro adopt jobs                                      # the folder of `render -o jobs`",),
    "wait": ("repro wait figure-13", "repro wait --timeout 2h"),
    "retry": (
        "repro retry figure-13 --dry-run",
        "repro retry figure-13 --class timeout --time +50%",
    ),
    "cancel": ("repro cancel figure-13", "repro cancel 77a694"),
    "forget": ("repro forget figure-13 --failed", "repro forget figure-13 --undo"),
    "collect": (
        "repro collect figure-13                               # a table, and all columns in a file",
        "repro collect figure-13 -o figure-13.parquet",
        "repro collect figure-13 --columns case,tflops_per_gpu | column -s, -t",
    ),
    "compare": (
        "repro compare figure-13                               # with the published numbers",
        "repro compare selene eos                              # two clusters",
    ),
    "claims": ("repro claims figure-13", "repro claims --cluster selene"),
    "plot": ("repro plot figure-13 -o figure-13.pdf",),
    "report": ("repro report -o report                                # all submitted experiments",),
    "bundle": ("repro bundle figure-13 -o figure-13.tar.zst", "repro bundle verify figure-13.tar.zst"),
    "clusters list": ("repro clusters list",),
    "clusters show": (
        "repro clusters show selene",
        "repro clusters show selene --resolved                 # the file and line of each value",
    ),
    "clusters check": (
        "repro clusters check here",
        "repro clusters check here --job                       # also on a node",
    ),
    "clusters new": ("repro clusters new here",),
    "clusters schema": ("repro clusters schema > schema.json",),
    "nodes deny": ("repro nodes deny n7 'n[9-12]' --because ECC --until 2026-12-31",),
    "nodes list": ("repro nodes list",),
    "nodes allow": ("repro nodes allow n7",),
    "images list": ("repro images list --cluster selene",),
    "images import": ("repro images import --cluster selene",),
    "experiments new": ("repro experiments new my/figure.yaml",),
    "experiments check": ("repro experiments check my/figure.yaml",),
    "experiments schema": ("repro experiments schema > experiment.json",),
    "workloads list": ("repro workloads list",),
    "workloads show": ("repro workloads show megatron-2021 --cluster selene",),
    "workloads fetch": ("repro workloads fetch megatron-2021 --cluster selene",),
    "config show": ("repro config show",),
}
"""Command -> lines of examples."""
