"""Check, summarise, report on and compare pools."""
