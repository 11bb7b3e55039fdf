"""Jobs, one module each: `qguide <job> --config FILE` reads one kind of record, writes the next."""
