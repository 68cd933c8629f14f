"""Files of this machine: regular ones, written whole, read at random; Parquet proven before Arrow sees it."""
