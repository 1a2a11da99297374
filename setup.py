"""The package: three of its folders stand at the root, see below."""

from setuptools import setup

# backbones/, tasks/ and search/ are subpackages of xdnas: an install puts one name into site-packages. The links in
# xdnas/ are for type checkers and for running from a checkout.
setup(
    packages=["xdnas", "xdnas.backbones", "xdnas.tasks", "xdnas.search"],
    package_dir={
        "xdnas": "xdnas",
        "xdnas.backbones": "backbones",
        "xdnas.tasks": "tasks",
        "xdnas.search": "search",
    },
    package_data={"xdnas": ["py.typed"]},
)
