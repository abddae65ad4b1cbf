"""A run from start to end: training, its folder, logs and checkpoints, evaluation, video and plot."""
