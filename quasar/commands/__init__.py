"""The sub-commands, one file each: arguments here, work elsewhere. Nothing heavy is imported before a command runs."""
