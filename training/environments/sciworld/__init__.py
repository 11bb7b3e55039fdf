"""ScienceWorld: experiments of elementary school in text (Wang et al., 2022)."""
