"""The papers' algorithms as pure functions, without files, models or clocks."""
