"""What the benchmarks share, and the studies where they need the same.

paired     ways of doing the same work, measured in turns, with intervals
options    the options that most benchmarks have
results    bars, and the file of figures
machines   on which machine figures were measured, and whether it was quiet
events     what a run has written down of itself
disk       raw transfers, the page cache, and the memory that a process takes
rivals     the libraries that save, which Holdfast is compared with
pages      tables and measured sections of documents
"""
