"""The method: teachers, class statistics, recovery, relabelling, students, analysis."""
