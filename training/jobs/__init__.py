"""One module per job: `qguide <job> --config FILE` reads one kind of record, writes the next."""
