"""`holdfast rehearse`: runs a training undisturbed and killed, and compares the two bit by bit."""
