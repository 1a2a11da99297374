if __name__ != "xdnas.search":
    raise ImportError("import xdnas.search, not search")
