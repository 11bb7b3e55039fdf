"""The papers' algorithms: values in, values out. No files, no models, no clocks here."""
