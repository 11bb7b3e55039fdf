"""ALFWorld: household games in text, their engines, games and expert."""
