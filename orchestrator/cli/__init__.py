"""The commands: parse, call, print. Each module imports what it needs inside its commands, so that --help is quick."""
