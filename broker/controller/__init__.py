"""Which topics there are and who leads what, told to every broker by the one that is elected."""
