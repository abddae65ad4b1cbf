"""Reference motion: files, resampling, kinematics, clips of our own, a library on the device, where episodes start."""

CLIP_NAMES = ("sway", "squat", "march", "arm_wave", "turn", "walk")  # what `synth` makes and the package brings
