"""The sub-commands, one file each: arguments here, work elsewhere."""
