"""Jobs on several hosts: the files that start one, and which rank a process is."""
