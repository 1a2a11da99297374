if __name__ != "xdnas.backbones":
    raise ImportError("import xdnas.backbones, not backbones")
