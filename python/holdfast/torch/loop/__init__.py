"""What happens at a step: when a save is made, how ranks agree, and what a resume reports."""
