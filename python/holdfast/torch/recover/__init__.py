"""Recovery of a training job while its survivors keep their processes."""
