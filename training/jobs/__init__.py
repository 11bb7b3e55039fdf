"""Jobs, one module each: `qguide <job> --config FILE` reads one kind of record and writes the next."""
