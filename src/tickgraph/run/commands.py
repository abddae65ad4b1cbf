"""The commands of the command line with their options, as `--help` shows them; loads neither torch nor MuJoCo."""

from __future__ import annotations

from tickgraph.run.arguments import Command, Option

JSON = Option(
    "json", "FILE", "also write the result to FILE as JSON; - is standard output, and all else then goes to stderr"
)
DEBUG = Option("debug", "", "show a traceback when something fails")
RUNS = Option("runs", "FOLDER", "where runs are kept (default: runs)")
NUM_ENVS = Option("num-envs", "N", "worlds", "train.num_envs")
DEVICE = Option("device", "NAME", "cpu, cuda or auto (a GPU where one can be used)", "train.device")
BACKEND = Option("backend", "NAME", "physics: mujoco, mjwarp or auto (the one for the device)", "train.backend")
ALGO = Option("algo", "NAME", "flashsac or sac: the task's settings for it (default: its own; see `tickgraph list`)")
SEED = Option("seed", "N", "seed of every random draw", "train.seed")

COMMANDS = {
    command.name: command
    for command in (
        Command("list", "", "show the tasks", "Show every task that has a name, and its algorithms.", (JSON, DEBUG)),
        Command(
            "describe",
            "TASK",
            "show a task's spaces, terms and memory",
            "Show what a task observes, rewards and ends by, and every tensor it keeps, with its bytes.\n"
            "Any value of the task can be another one here; `tickgraph describe TASK --help` lists them.",
            (ALGO, NUM_ENVS, BACKEND, JSON, DEBUG),
            overrides=True,
        ),
        Command(
            "check",
            "TASK",
            "find what would keep a task from being compiled or captured",
            "Judge every term of a task in seconds, with no GPU and no compiler: each one that is not static is named\n"
            "with its file and line. Exit code 2 when there is one.\n"
            "Any value of the task can be another one here; `tickgraph check TASK --help` lists them.",
            (ALGO, BACKEND, JSON, DEBUG),
            overrides=True,
        ),
        Command(
            "train",
            "TASK",
            "train a policy",
            """\
Train TASK: a name from `tickgraph list`, or path/to/task.py:FUNCTION for a task of your own.
Everything is written into a new folder, runs/TASK/TIME: log, checkpoints, evaluation, video, learning curve.

Any value of the task can be changed, each with its type checked: `tickgraph train TASK --help` lists them all.
  tickgraph train cartpole_swingup --seed 3 --env.rewards.upright.weight 2 --train.algo.gamma 0.98

Ctrl-C (or SIGTERM, or a closed terminal) finishes the iteration, saves and ends with exit code 130; a second one ends
at once, and what came after the last checkpoint is lost. Go on with --resume.""",
            (
                ALGO,
                SEED,
                Option("iterations", "N", "iterations of the whole run", "train.iterations"),
                NUM_ENVS,
                Option("ticks", "N", "control steps in an iteration", "train.ticks_per_iteration"),
                Option("updates", "N", "critic updates in an iteration", "train.updates_per_iteration"),
                Option("time-budget", "SECONDS", "end after this time, as completed", "train.time_budget_s"),
                DEVICE,
                BACKEND,
                Option("execution", "MODE", "auto, eager, compile or graph", "train.execution"),
                Option(
                    "overlap", "", "update beside the ticks, which then act one policy late", "train.overlap", "True"
                ),
                Option("no-overlap", "", "update when the ticks are over", "train.overlap", "False"),
                Option("no-video", "", "make no video at the end", "train.video", "False"),
                Option("run-name", "NAME", "name of the run's folder (default: the time)"),
                RUNS,
                Option("resume", "RUN", "go on with this run from its newest checkpoint; TASK may be left out"),
                Option("stop-after", "N", "stop after N iterations; the schedule stays that of --iterations"),
                Option("json", "FILE", "also write the run's summary to FILE; - is standard output"),
                DEBUG,
            ),
            overrides=True,
            subject_optional=True,
        ),
        Command(
            "eval",
            "RUN",
            "judge a trained policy",
            "Play the newest checkpoint of a run deterministically, and report survival, return and the task's own\n"
            "figures: the ones that stand in run_summary.json.\n"
            "Any value of its environment can be another one here, such as --env.commands.motion.clips walk.",
            (
                Option("episodes", "N", "episodes, all played at once", "evaluation.episodes"),
                DEVICE,
                BACKEND,
                RUNS,
                JSON,
                DEBUG,
            ),
            overrides=True,
        ),
        Command(
            "play",
            "RUN",
            "film a trained policy",
            "Play the newest checkpoint of a run and write an mp4; needs no display.\n"
            "Any value of its environment can be another one here, such as --env.commands.motion.clips walk.",
            (
                Option("video", "FILE", "the mp4 to write"),
                Option("seconds", "S", "length of the film, of each world", "video.seconds"),
                Option("worlds", "N", "worlds on film, one after the other (default: the task's)", "video.worlds"),
                DEVICE,
                BACKEND,
                RUNS,
                DEBUG,
            ),
            overrides=True,
        ),
        Command(
            "export",
            "RUN",
            "write a trained policy as ONNX, for a robot",
            """\
Write the newest checkpoint's policy as one ONNX file, and check it with ONNX Runtime on the policy's own observations.
Input "obs" (batch, O) float32 is what the task's terms observe, normalisation is inside; output "actions" (batch, A)
float32 in [-1, 1] is the deterministic action. The file's metadata say how to make the one and to obey the other.
Needs the extra `export` (onnx, onnxscript, onnxruntime).""",
            (Option("onnx", "FILE", "the file to write (default: policy.onnx in the run's folder)"), RUNS, JSON, DEBUG),
        ),
        Command(
            "plot",
            "RUN",
            "draw a run's learning curve",
            "Draw plots/learning_curve.png from metrics.jsonl.",
            (RUNS, DEBUG),
        ),
        Command(
            "profile",
            "TASK",
            "show where a tick's time goes",
            "Play ticks eager, part by part, and rank what they cost; name each wait, transfer, allocation and break\n"
            "of the captured region by its place. DIR gets profile.json, profile.png and trace.json (for Perfetto).\n"
            "Any value of the task can be another one here; `tickgraph profile TASK --help` lists them.",
            (
                *(ALGO, NUM_ENVS, DEVICE, BACKEND, SEED),
                Option("ticks", "N", "ticks that are timed (default: 50)"),
                Option("out", "DIR", "folder for the results (default: profiles/TASK)"),
                *(JSON, DEBUG),
            ),
            overrides=True,
        ),
        Command("doctor", "", "show what this machine can do and why not", "Look at this machine.", (JSON, DEBUG)),
    )
}
