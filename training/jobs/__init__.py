"""One module per job: `qguide <job> --config FILE` reads one kind of record and writes the next."""
