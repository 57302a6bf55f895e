"""`holdfast launch`: starts the ranks of a training job on this machine, and replaces those that die.

This process imports torch and runs none of it, so that it can be forked: a replacement begins where
imports end. It has one thread, makes all decisions about who is part of the job, and keeps no
state of the training.
"""
