"""What the adapters for Lightning and Hugging Face read from those packages, and put back."""
