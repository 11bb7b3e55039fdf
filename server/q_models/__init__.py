"""Q models at run time: loading, hot swapping, aliases, shadows and the score cache."""
