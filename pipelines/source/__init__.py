"""Reading what people wrote: objects to load, changes to apply, ``lakehouses.yaml``, references to versions."""
