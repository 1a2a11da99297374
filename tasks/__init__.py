if __name__ != "xdnas.tasks":
    raise ImportError("import xdnas.tasks, not tasks")
