"""ALFWorld: household games in text, with their engines, games and expert."""
