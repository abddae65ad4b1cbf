"""The learner: replay, networks, the FlashSAC objectives and the update cycle."""
