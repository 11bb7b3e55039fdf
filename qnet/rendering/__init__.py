"""Messages to tokens, alike in SFT, Q training and serving."""
