"""Lets the registry's CUDA build of torchvision import next to a CPU build of torch.

Its compiled operators cannot load there, and the import fails at `torchvision::nms`. Defining the two schemas
before the first import cures it. Installed into our own environments by .ci/setup, never part of the library:
users have a torchvision that matches their torch.
"""

import sys
from importlib.abc import MetaPathFinder


class _DefineOperators(MetaPathFinder):
    library = None

    def find_spec(self, fullname, path=None, target=None):
        if fullname == "torchvision":
            sys.meta_path.remove(self)
            import torch

            if torch.version.cuda is None:
                _DefineOperators.library = torch.library.Library("torchvision", "DEF")
                for name in ("nms", "qnms"):
                    self.library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        return


sys.meta_path.insert(0, _DefineOperators())
