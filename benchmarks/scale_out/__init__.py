"""How labelling grows beyond one machine: Ray beside processes, and where 64 workers would wait."""
