"""Single files and folders: holdfast.save, holdfast.load, and replacing a folder safely."""
