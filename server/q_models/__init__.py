"""Q models at run time: loaded, swapped, aliased, shadowed and cached."""
