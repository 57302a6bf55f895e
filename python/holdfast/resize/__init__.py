"""Requests to a job that runs, for another configuration: `holdfast resize`."""
