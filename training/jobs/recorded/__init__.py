"""Jobs on episodes that other agents recorded."""
