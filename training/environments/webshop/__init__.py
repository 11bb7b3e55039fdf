"""WebShop: buy the product that an instruction describes (Yao et al., 2022)."""
