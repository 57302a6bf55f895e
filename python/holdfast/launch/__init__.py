"""`holdfast launch`: starts the ranks of a training job, and replaces those that die.

The launcher imports torch and runs none of it, so that it can be forked: a replacement begins where
imports end. It has one thread, and keeps no state of the training.

  processes.py     the workers of this host: commands and reports
  printer.py       prints what they print, with lines.py, in a process of its own
  coordinator.py   makes all decisions, on host 0; ranks.py, losses.py and recoveries.py are what it knows
  hosts.py         the other hosts, as it sees them
  follower.py      the launcher of another host; host_connection.py is how it connects to that
                   of host 0, also again
"""
