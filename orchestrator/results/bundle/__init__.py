"""Everything a reviewer needs in one file, and whether such a file is what it says."""
