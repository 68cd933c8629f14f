"""Label folders of other programs: importers, exporters and what they share."""
