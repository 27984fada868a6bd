"""Runs before the program: reports Keras metrics, caps GPU memory, saves a last checkpoint.

Python imports this module by itself because its folder is on ``PYTHONPATH``. It needs the
standard library only, works on Python 3.8 and newer, and must never break a program: whatever
goes wrong in here is left alone.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys


class _AfterImport(importlib.abc.MetaPathFinder):
    """Calls a function once, right after a module was imported for the first time."""

    def __init__(self, hooks):
        self._hooks = dict(hooks)

    def find_spec(self, name, path=None, target=None):
        """Wrap the real loader of a module that has a hook; leave all others alone."""
        hook = self._hooks.pop(name, None)
        if hook is None:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def exec_module(module):
            run(module)
            try:
                hook(module)
            except Exception as error:
                _complain(name, error)

        try:
            spec.loader.exec_module = exec_module
        except AttributeError:
            return None
        return spec


def _complain(what, error):
    if os.environ.get("STARLING_KIT_DEBUG"):
        sys.stderr.write("starling: {}: {!r}\n".format(what, error))


def _cap_gpu_memory(module):
    """Give TensorFlow only the GPU memory that the job asked for."""
    limit = os.environ.get("STARLING_GPU_MEMORY_MIB")
    if not limit:
        return
    configuration = module.config
    for device in configuration.list_physical_devices("GPU"):
        configuration.set_logical_device_configuration(
            device, [configuration.LogicalDeviceConfiguration(memory_limit=int(limit))]
        )


def _hook_keras(module):
    import starling_keras

    starling_keras.install(module)


def _chain():
    """Run the sitecustomize that this one hides, if the interpreter has one of its own."""
    here = os.path.dirname(os.path.abspath(__file__))
    others = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


try:
    if os.environ.get("STARLING_JOB"):
        sys.meta_path.insert(
            0,
            _AfterImport({"tensorflow": _cap_gpu_memory, "keras.src.models.model": _hook_keras}),
        )
except Exception as error:
    _complain("sitecustomize", error)
try:
    _chain()
except Exception as error:
    _complain("the interpreter's own sitecustomize", error)
