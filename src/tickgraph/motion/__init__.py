"""Reference motion: files, resampling, kinematics, clips of our own, a library on the device, where episodes start."""
